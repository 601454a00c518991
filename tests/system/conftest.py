"""Tests with programs beyond Temporal's: `make test-system`. Each is built or installed once, before any time limit runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from mulligan.devserver import DevServer
from mulligan.telemetry import Telemetry
from tests.acceptance.conftest import environment, mulligan, worker  # noqa: F401 - fixtures
from tests.live.conftest import Lab, model, otlp  # noqa: F401 - fixtures
from tests.support.go_programs import jaeger_program
from tests.support.jaeger_server import JaegerServer, jaeger_server
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.temporal import connect_to


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


@pytest.fixture(scope="session")
async def lab(temporal: DevServer, model: OpenAIServer, otlp: OtlpReceiver) -> AsyncIterator[Lab]:  # noqa: F811
    """As in tests/live, but without a worker: each test starts its own, on a queue of its own."""
    telemetry = Telemetry()
    yield Lab(await connect_to(temporal), model, otlp, telemetry, "nobody")
    telemetry.shutdown()
