"""Fixtures of all tests: one real Temporal server for all processes, and an environment without the developer's settings.

What only some tests need is imported by its fixture: what is imported here is reached by all tests (tests/support/import_graph.py).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.examples import choose_examples
from tests.support.failed_tests import add_failed_tests
from tests.support.floors import WAITING, is_below
from tests.support.kept_environment import KeptEnvironment
from tests.support.kept_logging import KeptLogging
from tests.support.progress import Progress
from tests.support.schedule import MORE_THAN_CORES, in_order, make_scheduler
from tests.support.slow_workflows import allow_slow_workflows
from tests.support.time_budget import add_time_budget
from tests.support.time_limits import TimeLimits

if TYPE_CHECKING:
    from mulligan.devserver import DevServer
    from tests.support.openai_server import OpenAIServer
    from tests.support.otlp_receiver import OtlpReceiver

for name in list(os.environ):
    if name.startswith(("MULLIGAN_", "TEMPORAL_", "OTEL_", "OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_")):
        del os.environ[name]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell ignores SIGINT: children would inherit that, and tests that interrupt them would hang.
    signal.signal(signal.SIGINT, signal.default_int_handler)


SHARED: pytest.StashKey[DevServer] = pytest.StashKey()
ENVIRONMENT = KeptEnvironment()
allow_slow_workflows()
choose_examples()
gc.disable()  # until all tests are collected


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that write what tests compare."""
    parser.addoption("--write-docs", action="store_true", help="Write docs/recovery.md from what the tests see.")
    parser.addoption(
        "--write-costs", action="store_true", help="Write tests/live/step_costs.json from what steps cost."
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start the servers for all processes, before they start: output of those processes is not printed."""
    from tests.support.command_server import COMMAND_SERVER

    config.pluginmanager.register(TimeLimits())
    add_time_budget(config)
    add_failed_tests(config)
    config.pluginmanager.register(ENVIRONMENT)
    config.pluginmanager.register(KeptLogging())
    if is_shared(config):
        given: dict[str, str] = config.workerinput  # type: ignore[attr-defined]
        COMMAND_SERVER.path = given["command_server"]
        return
    config.add_cleanup(COMMAND_SERVER.stop)
    if not config.getoption("numprocesses", None):
        return
    from tests.support.temporal import SharedServer

    get_server(config)
    shared = SharedServer()
    config.stash[SHARED] = shared.start()
    config.add_cleanup(shared.stop)
    config.pluginmanager.register(Sharing(config))
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and config.option.verbose <= 0:
        config.pluginmanager.register(Progress(terminal))


class Sharing:
    """Hooks of pytest-xdist, for the controlling process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_configure_node(self, node: Any) -> None:
        """Pass the addresses of the servers to a process."""
        from tests.support.command_server import COMMAND_SERVER

        node.workerinput["temporal_address"] = self._config.stash[SHARED].address
        node.workerinput["command_server"] = COMMAND_SERVER.start()

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> Any:
        """Schedule by file, the long ones first."""
        return make_scheduler(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The number of processes for `--numprocesses auto`. CI names a smaller one where two floors share the cores."""
    if named := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(named)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + MORE_THAN_CORES


def is_shared(config: pytest.Config) -> bool:
    """Whether this is one of several processes that run the tests."""
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put them into the order for several processes."""
    if is_shared(config):
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[nodeid] for nodeid in in_order(list(by_id))]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get Temporal's dev server before the time limit of any test starts: a new machine has to install it."""
    if any(is_below(item.nodeid, WAITING) for item in session.items):
        get_server(session.config)
    # The garbage collector does not have to go through thousands of collected tests again and again.
    gc.freeze()
    gc.enable()


def get_server(config: pytest.Config) -> None:
    """Find or fetch it, and print that."""
    from mulligan.devserver import find_temporal

    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        asyncio.run(find_temporal(lambda line: print(line, file=sys.stderr, flush=True)))


@pytest.fixture(scope="session")
async def temporal(pytestconfig: pytest.Config) -> AsyncIterator[DevServer]:
    """An embedded Temporal server: a new one, or a namespace of the one that several processes share."""
    from mulligan.devserver import temporal_server
    from tests.support.temporal import own_namespace

    if is_shared(pytestconfig):
        given: dict[str, str] = pytestconfig.workerinput  # type: ignore[attr-defined]
        yield await own_namespace(given["temporal_address"], given["workerid"])
        return
    async with temporal_server() as server:
        yield server


@pytest.fixture(scope="session")
async def model() -> AsyncIterator[OpenAIServer]:
    """A model server whose answers tests script. It is that of the environment, so a process has one only."""
    from tests.support.openai_server import OpenAIServer

    async with OpenAIServer() as server:
        ENVIRONMENT.set_for_session(server.environment())
        yield server


@pytest.fixture(scope="session")
async def otlp() -> AsyncIterator[OtlpReceiver]:
    """A receiver of spans and metrics. It is that of the environment, so a process has one only."""
    from tests.support.otlp_receiver import OtlpReceiver

    async with OtlpReceiver() as receiver:
        ENVIRONMENT.set_for_session(receiver.environment())
        yield receiver
