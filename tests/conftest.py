"""What all tests share: one real Temporal server for the session, and an environment without the developer's settings."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from mulligan.devserver import DevServer, find_temporal, temporal_server

for name in list(os.environ):
    if name.startswith(("MULLIGAN_", "TEMPORAL_", "OTEL_", "OPENAI_")):
        del os.environ[name]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job: children would inherit it, and tests that interrupt them would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--write-docs`: pages that are printed from tests are written, not compared."""
    parser.addoption("--write-docs", action="store_true", help="Write docs/recovery.md from what the tests see.")


def pytest_configure(config: pytest.Config) -> None:
    """Before the processes that share the tests are started: what one of them says of the build would not be seen."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        get_server(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get Temporal's dev server before any test's time limit runs: on a new machine it is built, for minutes."""
    if any({"live", "acceptance", "system"} & set(item.path.parts) for item in session.items):
        get_server(session.config)


def get_server(config: pytest.Config) -> None:
    """Find, download or build it, and say so."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        asyncio.run(find_temporal(lambda line: print(line, file=sys.stderr, flush=True)))


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[DevServer]:
    """An embedded Temporal server."""
    async with temporal_server() as server:
        yield server
