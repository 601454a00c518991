"""One worker, one scripted model server and one OTLP receiver, which all tests of a process share that have a `lab`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from mulligan.devserver import DevServer, temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.lab import Lab
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.temporal import connect_to, end_open_runs


@pytest.fixture(scope="module", autouse=True)
async def open_runs_end_with_their_module(temporal: DevServer) -> AsyncIterator[None]:
    """So that no test waits for the runs of another one."""
    yield
    await end_open_runs(temporal)


@pytest.fixture(scope="module", autouse=True)
def busy_workers_are_not_lost() -> Iterator[None]:
    """Workers of this process are never lost, but on a busy machine one is silent for longer than 5 s: 128 calls begin at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HEARTBEAT_TIMEOUT", timedelta(minutes=1))
        yield


@pytest.fixture(scope="session")
async def chain_server() -> AsyncIterator[DevServer]:
    """A server that suggests to continue as new after 60 events."""
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=60"]) as server:
        yield server


_OPEN: list[Lab] = []
"""The lab of this process. Each folder that imports the fixture has one of its own, as pytest counts: a second worker on the
same task queue would run some of the activities, and export their spans when no test waits for them."""


@pytest.fixture(scope="session")
async def lab(temporal: DevServer, model: OpenAIServer, otlp: OtlpReceiver) -> AsyncIterator[Lab]:
    if _OPEN:
        yield _OPEN[0]
        return
    client = await connect_to(temporal)
    telemetry = Telemetry()
    names = (
        "shop_agents",
        "structured_output_agents",
        "remote_tool_agents",
        "sequential_turns_workflow",
        "people_agents",
        "concurrent_agents_workflow",
    )
    loaded = load([f"tests.support.{name}" for name in names])
    async with running_worker(client, loaded, telemetry, "agents") as workers:
        _OPEN.append(Lab(client, model, otlp, telemetry, workers=workers))
        yield _OPEN[0]
        _OPEN.clear()
    telemetry.shutdown()
