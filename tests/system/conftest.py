"""Tests with programs beyond Temporal's: `make test-system`. Each is built or installed once, before any time limit runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from mulligan.devserver import DevServer
from mulligan.devserver._cache import FetchError
from mulligan.observe.telemetry import Telemetry
from tests.acceptance.conftest import environment, mulligan, worker  # noqa: F401 - fixtures
from tests.live.conftest import Lab, model, otlp  # noqa: F401 - fixtures
from tests.support.go_programs import MADE, make, make_all, say_on_stderr
from tests.support.jaeger_server import JaegerServer, jaeger_server
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.temporal import connect_to

FIRST = (
    "test_load",
    "test_load_limited",
    "test_mcp",
    "test_show_trace",
    "test_devserver",
    "test_codec_server",
    "test_tls",
)
"""Files that take long begin first, or one process would be busy with one when the others have nothing left."""
LAST = ("test_kubernetes", "test_compose", "test_traces", "test_show_trace_jaeger", "test_dashboard", "test_collector")
"""They need what is built on a new machine, for minutes."""


def pytest_configure(config: pytest.Config) -> None:
    """Build what is not there yet while the first tests run; in one process, and where its words are seen."""
    if hasattr(config, "workerinput") or all(made.exists() for made in MADE.values()):
        return

    def say(line: str) -> None:
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is None:
            say_on_stderr(line)
        else:
            terminal.write_line(line)
            terminal.flush()  # a file or a pipe would have the line minutes later

    def build() -> None:
        try:
            asyncio.run(make_all(say))
        except FetchError as error:
            # The first test that needs it tries again, and says so itself.
            say(f"not built: {error}")

    threading.Thread(target=build, name="go", daemon=True).start()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By file (tests/support/schedule.py), and the same in each process, whatever is built meanwhile; with a time limit."""

    def rank(item: pytest.Item) -> int:
        order = [*FIRST, "", *LAST]
        return order.index(item.path.stem if item.path.stem in order else "")

    items.sort(key=rank)
    for item in items:
        if "system" in item.path.parts and item.get_closest_marker("timeout") is None:
            # More than elsewhere: registries are asked, and servers and workers start as processes of their own.
            item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Wait for what a test needs before its time limit runs, which is when the hooks after this one begin."""
    for name in MADE.keys() & set(getattr(item, "fixturenames", ())):
        if not MADE[name].exists():
            capture = item.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                # Not in the thread that has the tests' own event loop.
                waiting = threading.Thread(target=wait_for, args=(name,))
                waiting.start()
                waiting.join()
    return (yield)


def wait_for(name: str) -> None:
    """Until another process, or this one, has made it. Where it cannot be made the test's fixture says why."""
    with suppress(FetchError):
        asyncio.run(make(name, say_on_stderr))


@pytest.fixture(scope="session")
async def jaeger_program() -> Path:
    """Jaeger v2, which is a build of OpenTelemetry's Collector too."""
    return await make("jaeger_program", say_on_stderr)


@pytest.fixture(scope="session")
async def kustomize_program() -> Path:
    """What `kubectl apply -k` builds with."""
    return await make("kustomize_program", say_on_stderr)


@pytest.fixture(scope="session")
async def compose_program() -> Path:
    """The Compose Specification's own loader."""
    return await make("compose_program", say_on_stderr)


@pytest.fixture(scope="session")
async def keda_schemas() -> Path:
    """KEDA's source, as far as it holds schemas."""
    return await make("keda_schemas", say_on_stderr)


@pytest.fixture(scope="session")
async def jaeger(jaeger_program: Path) -> AsyncIterator[JaegerServer]:
    """A real Jaeger, one for each process that runs tests: it is there in 0.2 s."""
    async with jaeger_server(jaeger_program) as server:
        yield server


@pytest.fixture(scope="session")
async def lab(temporal: DevServer, model: OpenAIServer, otlp: OtlpReceiver) -> AsyncIterator[Lab]:  # noqa: F811
    """As in tests/live, but without a worker: each test starts its own, on a queue of its own."""
    telemetry = Telemetry()
    yield Lab(await connect_to(temporal), model, otlp, telemetry, "nobody")
    telemetry.shutdown()
