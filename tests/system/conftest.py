"""Tests of whole features, and with more programs than Temporal: `make test-system`. Each program is built or installed before
any time limit starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from mulligan.devserver import DevServer
from mulligan.devserver._cache import FetchError
from mulligan.observe.telemetry import Telemetry
from tests.support.chromium import browser, find_chromium, install_chromium
from tests.support.command_fixtures import environment, mulligan, worker  # noqa: F401 - fixtures
from tests.support.go_programs import MADE, OF_TESTS, Say, make, make_all, say_on_stderr
from tests.support.jaeger_server import JaegerServer, jaeger_server
from tests.support.lab import Lab
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.temporal import connect_to, end_open_runs

LAST = (
    "test_traces",
    "test_dashboard",
    "test_alerts",
    "test_kubernetes",
    "test_compose",
    "test_show_trace_jaeger",
    "test_collector",
)
"""These files need programs that take minutes to build on a new machine."""
SERVED: list[DevServer] = []
"""The server, once a test has used it."""


def pytest_configure(config: pytest.Config) -> None:
    """Build missing programs while the first tests run, in one process whose output is printed."""
    is_complete = all(MADE[name].exists() for name in OF_TESTS) and find_chromium() is not None
    if hasattr(config, "workerinput") or is_complete:
        return

    def say(line: str) -> None:
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is None:
            say_on_stderr(line)
        else:
            terminal.write_line(line)
            terminal.flush()  # otherwise a file or a pipe gets the line minutes later

    def build(made: Callable[[Say], Coroutine[Any, Any, object]]) -> None:
        try:
            asyncio.run(made(say))
        except FetchError as error:
            # The first test that needs the program tries again and reports the error.
            say(f"not built: {error}")

    for name, made in (("chromium", install_chromium), ("go", make_all)):
        threading.Thread(target=build, args=(made,), name=name, daemon=True).start()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what needs long builds last, after the order of all tests (tests/support/schedule.py); set the time limit."""

    def rank(item: pytest.Item) -> int:
        return LAST.index(item.path.stem) + 1 if item.path.stem in LAST else 0

    items.sort(key=rank)
    for item in items:
        if "system" in item.path.parts and item.get_closest_marker("timeout") is None:
            # More than elsewhere: registries are asked, and servers and workers start as processes. It ends tests that hang,
            # and must not end any on a slow machine: there some took eight minutes.
            item.add_marker(pytest.mark.timeout(900))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Wait for the programs of a test before its time limit starts, which is when the hooks after this one begin."""
    for name in MADE.keys() & set(getattr(item, "fixturenames", ())):
        if not MADE[name].exists():
            capture = item.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                # Not in the thread of the tests' event loop.
                waiting = threading.Thread(target=wait_for, args=(name,))
                waiting.start()
                waiting.join()
    return (yield)


def wait_for(name: str) -> None:
    """Wait until this process or another one has built it. If that fails, the fixture of the test says why."""
    with suppress(FetchError):
        asyncio.run(make(name, say_on_stderr))


@pytest.fixture(scope="session")
async def chromium_program() -> str:
    """Debian's Chromium."""
    return await install_chromium(say_on_stderr)


@pytest.fixture(scope="session")
async def chromium(chromium_program: str) -> AsyncIterator[Browser]:
    """One for each process that runs tests: each test opens a context of its own, which shares nothing with others."""
    async with browser(chromium_program) as running:
        yield running


@pytest.fixture(scope="session")
async def jaeger_program() -> Path:
    """Jaeger v2, which is a build of OpenTelemetry's Collector too."""
    return await make("jaeger_program", say_on_stderr)


@pytest.fixture(scope="session")
async def kustomize_program() -> Path:
    """Kustomize, with which `kubectl apply -k` builds."""
    return await make("kustomize_program", say_on_stderr)


@pytest.fixture(scope="session")
async def kubeconform_program() -> Path:
    """The validator of Kubernetes' manifests."""
    return await make("kubeconform_program", say_on_stderr)


@pytest.fixture(scope="session")
async def promtool_program() -> Path:
    """Prometheus' checker of rules."""
    return await make("promtool_program", say_on_stderr)


@pytest.fixture(scope="session")
async def actionlint_program() -> Path:
    """The checker of workflow files of GitHub Actions."""
    return await make("actionlint_program", say_on_stderr)


@pytest.fixture(scope="session")
async def compose_program() -> Path:
    """The Compose Specification's own loader."""
    return await make("compose_program", say_on_stderr)


@pytest.fixture(scope="session")
async def keda_schemas() -> Path:
    """The part of KEDA's source that contains schemas."""
    return await make("keda_schemas", say_on_stderr)


@pytest.fixture(scope="session")
async def conventions() -> Path:
    """OpenTelemetry's semantic conventions, as Go source."""
    return await make("conventions", say_on_stderr)


@pytest.fixture(scope="session")
async def temporal(temporal: DevServer) -> DevServer:
    """That of all tests."""
    SERVED.append(temporal)
    return temporal


@pytest.fixture(scope="module", autouse=True)
async def open_runs_end_with_their_module() -> AsyncIterator[None]:
    """So that no page waits for runs of another module, whose worker has ended. Modules without Temporal start no server for it."""
    yield
    for server in SERVED:
        await end_open_runs(server)


@pytest.fixture(scope="session")
async def jaeger(jaeger_program: Path) -> AsyncIterator[JaegerServer]:
    """A real Jaeger for each process that runs tests; it starts in 0.2 s."""
    async with jaeger_server(jaeger_program) as server:
        yield server


@pytest.fixture(scope="session")
async def lab(temporal: DevServer, model: OpenAIServer, otlp: OtlpReceiver) -> AsyncIterator[Lab]:
    """As in tests/live, but without a worker: each test starts its own, on its own task queue."""
    telemetry = Telemetry()
    yield Lab(await connect_to(temporal), model, otlp, telemetry, "nobody")
    telemetry.shutdown()
