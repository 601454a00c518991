"""Limits of one worker and of a whole task queue, for model calls alone or for all activities."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, PendingActivityState, TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.service import RPCError

from tests.support.compaction_agents import PROMPT, reading
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.own_worker import BOTH_KINDS, serving

STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
WAITS = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


@asynccontextmanager
async def limited_lab(
    lab: Lab,
    queue: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    module: str = "tests.support.shop_agents",
    /,
    **limits: float,
) -> AsyncIterator[Lab]:
    """A worker with these settings, on its own task queue and connection. Limits of all activities are options of an own one."""
    options = {name: value for name, value in limits.items() if kind == "own" and "activities" in name}
    client = await lab.another_client()
    with monkeypatch.context() as environment:
        for name, value in limits.items() - options.items():
            environment.setenv(f"MULLIGAN_{name.upper()}", str(value))
        running = serving(kind, client, [module], lab.telemetry, queue, **options)
        await running.__aenter__()
    try:
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    finally:
        await running.__aexit__(None, None, None)


async def pending(handles: list[Any]) -> Counter[tuple[str, int]]:
    """How many activities the runs wait for, by name and state."""
    described = [(await handle.describe()).raw_description for handle in handles]
    return Counter((each.activity_type.name, each.state) for run in described for each in run.pending_activities)


async def until(is_so: Callable[[Counter[tuple[str, int]]], bool], handles: list[Any]) -> None:
    while not is_so(await pending(handles)):
        await asyncio.sleep(0.05)


async def queues_of(handle: Any) -> Counter[tuple[str, str]]:
    """The task queue of each activity of a run."""
    found: Counter[tuple[str, str]] = Counter()
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            told = event.activity_task_scheduled_event_attributes
            found[told.activity_type.name, told.task_queue.name] += 1
    return found


@BOTH_KINDS
async def test_a_worker_runs_no_more_model_calls_at_once_than_its_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """The others wait in the task queue, and tools run meanwhile."""
    async with limited_lab(lab, f"two-at-once-{kind}", kind, monkeypatch, max_concurrent_model_calls=2) as at:
        go = asyncio.Event()
        other = await at.start([call("wait_for_file"), DONE], metadata={"file": str(tmp_path / "go")})
        await until(lambda of: of["call_tool", STARTED] == 1, [other])
        runs = [await at.start([Turn(text="done", wait=go)]) for _ in range(6)]
        await until(lambda of: of["call_model", STARTED] == 2 and of["call_model", WAITS] == 4, runs)
        (tmp_path / "go").touch()
        await until(lambda of: of["call_model", WAITS] == 1, [other])
        assert (await pending(runs))["call_model", STARTED] == 2
        go.set()
        results = await asyncio.gather(*(handle.result() for handle in [other, *runs]))
        assert {result["status"] for result in results} == {"completed"}
        assert await queues_of(other) == {
            ("open_run", f"two-at-once-{kind}"): 1,
            ("call_model", f"two-at-once-{kind}-models"): 2,
            ("call_tool", f"two-at-once-{kind}"): 1,
        }


@BOTH_KINDS
async def test_a_compaction_waits_in_the_queue_of_model_calls(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its activity is scheduled on the task queue of model calls."""
    module = "tests.support.compaction_agents"
    async with limited_lab(lab, f"summing-up-{kind}", kind, monkeypatch, module, max_concurrent_model_calls=2) as at:
        ran = await at.run(reading(7), agent="page_reader", prompt=PROMPT)
        queues = await queues_of(ran.handle)
    assert ran.result["output"] == "heron, after 7"
    assert queues["compact_conversation", f"summing-up-{kind}-models"] >= 1
    assert queues["call_model", f"summing-up-{kind}-models"] == 8
    assert {queue for name, queue in queues if name not in ("call_model", "compact_conversation")} == {
        f"summing-up-{kind}"
    }


async def set_rate(at: Lab, queue: str, rate: float) -> None:
    """As `temporal task-queue config set --task-queue-type activity --queue-rps-limit …` does."""
    await at.client.workflow_service.update_task_queue_config(
        UpdateTaskQueueConfigRequest(
            namespace=at.client.namespace,
            identity="test",
            task_queue=queue,
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            update_queue_rate_limit=UpdateTaskQueueConfigRequest.RateLimitUpdate(
                rate_limit=RateLimit(requests_per_second=rate), reason="test"
            ),
        ),
        retry=True,
    )


@BOTH_KINDS
async def test_the_rate_of_model_calls_applies_to_all_workers_of_the_queue(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It can be raised while they run."""
    slow = {"max_task_queue_model_calls_per_second": 0.01}
    async with (
        limited_lab(lab, f"slow-{kind}", kind, monkeypatch, **slow) as at,
        limited_lab(lab, f"slow-{kind}", kind, monkeypatch, **slow),
    ):
        runs = [await at.start([DONE]) for _ in range(5)]
        await until(lambda of: of["call_model", WAITS] == 4, runs)
        # Wait as long as another run takes, whose tools have no limit.
        await lab.run([call("now"), call("now"), DONE])
        assert await pending(runs) == {("call_model", WAITS): 4}
        await set_rate(at, f"slow-{kind}-models", 1000)
        assert {(await handle.result())["status"] for handle in runs} == {"completed"}


@BOTH_KINDS
async def test_the_rate_of_model_calls_of_one_worker_applies(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """All runs are opened, and one of them calls its model."""
    async with limited_lab(lab, f"own-rate-{kind}", kind, monkeypatch, max_model_calls_per_second=0.01) as at:
        runs = [await at.start([DONE]) for _ in range(5)]
        await until(lambda of: of["call_model", WAITS] == 4, runs)
        await lab.run([call("now"), call("now"), DONE])
        assert await pending(runs) == {("call_model", WAITS): 4}
        for each in runs:
            with suppress(RPCError):  # the one that has called its model has ended
                await each.terminate()


@BOTH_KINDS
@pytest.mark.parametrize("setting", ["max_activities_per_second", "max_task_queue_activities_per_second"])
async def test_a_rate_for_all_activities_applies_to_eagerly_dispatched_ones(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, setting: str, kind: str
) -> None:
    """The run is opened, then its model call waits."""
    async with limited_lab(lab, f"rate-{len(setting)}-{kind}", kind, monkeypatch, **{setting: 0.01}) as at:
        run = await at.start([DONE])
        await until(lambda of: of["call_model", WAITS] == 1, [run])
        await lab.run([call("now"), call("now"), DONE])
        assert await pending([run]) == {("call_model", WAITS): 1}
        await run.terminate()


async def test_without_limits_all_activities_use_one_task_queue(lab: Lab) -> None:
    """With eager dispatch."""
    ran = await lab.run([call("now"), DONE])
    assert {queue for _, queue in await queues_of(ran.handle)} == {"agents"}
