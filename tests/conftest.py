"""What all tests share: one real Temporal server for the session, and an environment without the developer's settings."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from mulligan.devserver import DevServer, temporal_server

for name in list(os.environ):
    if name.startswith(("MULLIGAN_", "TEMPORAL_", "OTEL_", "OPENAI_")):
        del os.environ[name]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job: children would inherit it, and tests that interrupt them would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[DevServer]:
    """An embedded Temporal server, built first where there is none (progress goes to the real stderr)."""
    async with temporal_server(progress=lambda line: print(line, file=sys.__stderr__, flush=True)) as server:
        yield server
