"""Tests with programs beyond Temporal's: `make test-system`. Each is built or installed once, before any time limit runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from tests.live.conftest import model, otlp  # noqa: F401 - fixtures
from tests.support.go_programs import jaeger_program
from tests.support.jaeger_server import JaegerServer, jaeger_server


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build Jaeger first: it takes minutes."""
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        asyncio.run(jaeger_program())


@pytest.fixture(scope="session")
async def jaeger() -> AsyncIterator[JaegerServer]:
    """A real Jaeger."""
    async with jaeger_server(await jaeger_program()) as server:
        yield server
