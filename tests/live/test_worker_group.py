"""A worker that stops by itself is reported at once, and one that does not poll is noticed."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio import __version__ as sdk_version
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from mulligan import connect
from mulligan.client.served_agents import without_tag
from mulligan.devserver import DevServer, temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.worker import poll_monitor
from mulligan.worker.group import WorkerGroup, WorkerStoppedError
from mulligan.worker.loading import SHIPPED, load
from mulligan.worker.poll_monitor import ActivitySlots, PollMonitor
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab
from tests.support.own_worker import BOTH_KINDS, serving
from tests.support.worker_process import worker_process

STOPPED = "the worker of task queue 'watched' has stopped: Namespace nowhere is not found. (NotFound)"
BRIEF_POLLS = 'matching.longPollExpirationInterval="200ms"'
"""Polls without a task end after this time instead of a minute, and the next one begins."""
BETWEEN_CHECKS = 1.0
"""In seconds; several short polls fit in."""


@activity.defn
async def nothing() -> None:
    pass


@workflow.defn(sandboxed=False)
class Holds:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity("hold", start_to_close_timeout=timedelta(minutes=5))


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def client_without_namespace(temporal: DevServer) -> Client:
    """A connection to a namespace that does not exist: the first poll of a worker fails."""
    return await connect(temporal.address, namespace="nowhere")


async def test_a_worker_that_stops_ends_the_block_and_is_reported(client_without_namespace: Client) -> None:
    said: list[str] = []
    group = WorkerGroup(said.append, seconds_to_stop=10)
    worker = Worker(client_without_namespace, task_queue="watched", activities=[nothing])
    with pytest.raises(WorkerStoppedError, match="Namespace nowhere is not found"):
        async with group.running([worker]):
            await forever()
    assert said == [f"error: {STOPPED}"]
    assert group.unready == STOPPED
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_when_one_worker_stops_the_other_is_shut_down(
    temporal: DevServer, client_without_namespace: Client
) -> None:
    group = WorkerGroup(lambda _: None, seconds_to_stop=10)
    fine = Worker(await connect(temporal.address), task_queue="fine", activities=[nothing])
    failing = Worker(client_without_namespace, task_queue="watched", activities=[nothing])
    with pytest.raises(WorkerStoppedError, match="'watched'"):
        async with group.running([fine, failing]):
            await forever()
    assert fine.is_shutdown


async def test_a_stopped_worker_is_reported_when_the_task_that_entered_has_ended(
    client_without_namespace: Client,
) -> None:
    """As in a test's fixture, there is no task to cancel. The error is logged, and raised at the end of the block."""
    said: asyncio.Queue[str] = asyncio.Queue()
    group = WorkerGroup(said.put_nowait, seconds_to_stop=10)
    block = group.running([Worker(client_without_namespace, task_queue="watched", activities=[nothing])])
    await asyncio.create_task(block.__aenter__())
    assert await said.get() == f"error: {STOPPED}"
    with pytest.raises(WorkerStoppedError):
        await block.__aexit__(None, None, None)


async def test_tests_do_not_wait_for_runs_of_a_stopped_worker(lab: Lab, client_without_namespace: Client) -> None:
    group = WorkerGroup(lambda _: None, seconds_to_stop=10)
    with pytest.raises(WorkerStoppedError):
        async with group.running([Worker(client_without_namespace, task_queue="watched", activities=[nothing])]):
            await forever()
    unserved = dataclasses.replace(lab, task_queue="unserved", workers=None)
    handle = await unserved.start([DONE])
    abandoned = dataclasses.replace(lab, task_queue="unserved", workers=group)
    with pytest.raises(WorkerStoppedError):
        await abandoned.look(handle)
    with pytest.raises(WorkerStoppedError):
        await abandoned.start([DONE])
    await handle.terminate()


async def test_a_cancellation_from_outside_is_raised_as_such(temporal: DevServer) -> None:
    group = WorkerGroup(lambda _: None, seconds_to_stop=10)
    worker = Worker(await connect(temporal.address), task_queue="watched", activities=[nothing])
    entered = asyncio.Event()

    async def serve() -> None:
        async with group.running([worker]):
            entered.set()
            await forever()

    serving = asyncio.create_task(serve())
    await entered.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (group.failure, group.unready) == (None, "draining")
    assert worker.is_shutdown


@pytest.fixture(scope="module")
async def short_poll_client() -> AsyncIterator[Client]:
    """A server whose polls end soon, so that each check finds the poll of a running worker."""
    async with temporal_server(dynamic_config=[BRIEF_POLLS]) as server:
        yield await connect(server.address)


async def reasons_of_checks(monitor: PollMonitor, times: int) -> list[str]:
    """The reasons that the monitor gives, for each of some checks."""
    found = []
    for _ in range(times):
        await asyncio.sleep(BETWEEN_CHECKS)
        await monitor.check()
        found.append(monitor.reason)
    return found


async def test_polls_that_end_without_an_error_are_reported(
    short_poll_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's core stops, as after a panic in it, while `Worker.run()` goes on and `is_running` stays true."""
    said: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(poll_monitor, "SECONDS_BETWEEN_CHECKS", BETWEEN_CHECKS)
    monitor = PollMonitor(short_poll_client, "deaf", "activity", said.put_nowait, misses_to_report=2)
    group = WorkerGroup(said.put_nowait, seconds_to_stop=10)
    worker = Worker(short_poll_client, task_queue="deaf", activities=[nothing])
    reason = "not polling task queue 'deaf' for activity tasks"
    async with group.running([worker], [monitor]):
        assert await reasons_of_checks(monitor, 5) == [""] * 5
        worker._bridge_worker.initiate_shutdown()
        line = await said.get()
        assert line.startswith("Not polling: for ")
        assert line.endswith(" for activity tasks of task queue 'deaf', so it takes none. Restart this worker.")
        assert worker.is_running
        assert group.unready == reason
        another = await connect(short_poll_client.service_client.config.target_host)
        async with Worker(another, task_queue="deaf", activities=[nothing]):
            assert await said.get() == "Polling again: task queue 'deaf', activity tasks."
        assert group.failure is None


@pytest.mark.parametrize(("version", "count"), [(sdk_version, 0), ("1.999.0", 1)])
async def test_a_worker_says_once_that_its_temporalio_was_not_tried(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch, version: str, count: int
) -> None:
    said: list[str] = []
    monkeypatch.setattr("mulligan.worker.sdk_workarounds.workaround_runner.sdk_version", version)
    monkeypatch.setattr("mulligan.worker.wiring.say", said.append)
    client, loaded = await connect(temporal.address), load(SHIPPED)
    async with running_worker(client, loaded, Telemetry(exports=False), f"tried-{version}") as group:
        assert group.unready == ""
    lines = [line for line in said if "temporalio" in line]
    assert len(lines) == count
    for line in lines:
        assert line.startswith("warning: ")
        assert "was not tried with 1.999.0" in line
        assert "\n" not in line


@BOTH_KINDS
async def test_a_worker_exports_temporals_metrics_that_the_dashboard_shows(
    lab: Lab, temporal: DevServer, kind: str
) -> None:
    queue = f"measured-{uuid.uuid4().hex[:6]}"
    environment = lab.otlp.environment("http/protobuf") | {"OTEL_METRIC_EXPORT_INTERVAL": "200"}
    shown = {"temporal_num_pollers", "temporal_worker_task_slots_available"}
    exported: set[str] = set()
    async with worker_process("tests.support.shop_agents", queue, temporal, kind, **environment):
        while not exported >= shown:
            metrics = [
                each for each in lab.otlp.metrics() if any(p.attributes.get("task_queue") == queue for p in each.points)
            ]
            exported = {each.name for each in metrics}
            await asyncio.sleep(0.1)
    assert {p.attributes["service_name"] for each in metrics for p in each.points} == {"temporal-core-sdk"}


@BOTH_KINDS
async def test_each_task_queue_and_task_type_of_a_worker_is_monitored(
    short_poll_client: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("MULLIGAN_MAX_CONCURRENT_MODEL_CALLS", "2")
    monkeypatch.setattr(poll_monitor, "SECONDS_BETWEEN_CHECKS", 0.2)
    async with serving(kind, short_poll_client, SHIPPED, Telemetry(exports=False), "all") as group:
        assert group.unready == ""
        for monitor in group.monitors:
            while not monitor._last_poll.get(monitor.task_queue):
                await asyncio.sleep(0.05)
        watched = [(monitor.task_queue, monitor.task_type) for monitor in group.monitors]
        own = group.monitors[-1].task_queue.removesuffix("-models")
    assert without_tag(own) == "all" != own
    assert watched == [
        ("all", "workflow"),
        ("all", "activity"),
        ("all-models", "activity"),
        (own, "activity"),
        (f"{own}-models", "activity"),
    ]


async def test_a_worker_whose_slots_are_all_in_use_is_not_reported(short_poll_client: Client) -> None:
    """It does not poll, and does not need to."""
    slots = ActivitySlots(1)
    began, go = asyncio.Event(), asyncio.Event()

    @activity.defn
    async def hold() -> None:
        began.set()
        await go.wait()

    said: list[str] = []
    monitor = PollMonitor(
        short_poll_client, "full", "activity", said.append, all_in_use=lambda: slots.all_in_use, misses_to_report=1
    )
    worker = Worker(
        short_poll_client,
        task_queue="full",
        workflows=[Holds],
        activities=[hold],
        max_concurrent_activities=1,
        interceptors=[slots],
    )
    async with worker:
        assert not slots.all_in_use
        handle = await short_poll_client.start_workflow(Holds.run, id=f"holds-{uuid.uuid4()}", task_queue="full")
        await began.wait()
        assert slots.all_in_use
        assert await reasons_of_checks(monitor, 4) == [""] * 4
        go.set()
        await handle.result()
        assert not slots.all_in_use
    assert said == []


async def test_an_unreachable_server_is_not_reported_as_missing_polls() -> None:
    """That is reported elsewhere."""
    said: list[str] = []
    async with temporal_server() as server:
        client = await connect(server.address)
        monitor = PollMonitor(client, "away", "workflow", said.append, misses_to_report=2)
        await monitor.check()
    for _ in range(3):
        await monitor.check()
    assert (monitor.reason, said) == ("", [])


async def test_pollers_are_looked_for_in_all_partitions_of_a_queue() -> None:
    """Pollers are spread over the partitions: the first one may have none."""
    partitions = [f"matching.numTaskqueue{kind}Partitions=4" for kind in ("Read", "Write")]
    said: list[str] = []
    async with temporal_server(dynamic_config=[*partitions, BRIEF_POLLS]) as server:
        client = await connect(server.address)
        unpolled = PollMonitor(client, "unpolled", "workflow", said.append, misses_to_report=1)
        await unpolled.check()
        # A partition that cannot be asked would give no reason.
        assert unpolled.reason == "not polling task queue 'unpolled' for workflow tasks"
        polled = PollMonitor(client, "wide", "activity", said.append, misses_to_report=2)
        async with Worker(client, task_queue="wide", activities=[nothing]):
            assert await reasons_of_checks(polled, 4) == [""] * 4
    assert len(said) == 1
