"""Workers of one task queue that serve different agents: every run opens, and works, where its agent is served."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

from mulligan import MulliganPlugin, error_of
from mulligan.activities import agent_not_served
from mulligan.client.pollers import last_polls
from mulligan.client.read_agents import AgentReader
from mulligan.client.served_agents import ServedAgents, read_other_workers
from mulligan.client.wait_reader import WaitReader
from mulligan.worker import other_agents, plugin_worker
from mulligan.worker.activity_workers import activity_workers
from mulligan.worker.group import WorkerGroup, WorkerStoppedError
from mulligan.worker.loading import load
from mulligan.worker.poll_monitor import PollMonitor
from mulligan.workflows import limits
from tests.live.test_waiting_for import waits_for
from tests.support.lab import Lab
from tests.support.own_worker import serving

EAST, WEST = "tests.support.east_agents", "tests.support.west_agents"
BOTH = "tests.support.both_sides_workflow"
PACKED = "7 g / 8 g / in the words of the packer / 9 g"


@activity.defn
async def greet() -> str:
    return "an activity of the worker's own"


class Sides:
    """The two workers, each with a client of its own, on one task queue."""

    def __init__(self, lab: Lab, kind: str = "ours") -> None:
        self.lab, self.kind = lab, kind
        self.queue = f"sides-{uuid.uuid4().hex[:6]}"

    async def worker(self, module: str) -> AbstractAsyncContextManager[WorkerGroup]:
        client = await self.lab.another_client()
        return serving(self.kind, client, [module, BOTH], self.lab.telemetry, self.queue)

    async def start(self, agent: str) -> Any:
        return await self.lab.client.start_workflow(
            "AgentWorkflow",
            {"agent": agent, "prompt": "Go."},
            id=f"{agent}-{uuid.uuid4().hex[:6]}",
            task_queue=self.queue,
        )


@pytest.fixture(params=["ours", "own"])
async def sides(lab: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Sides]:
    sides = Sides(lab, request.param)
    async with AsyncExitStack() as stack:
        for module in (EAST, WEST):
            await stack.enter_async_context(await sides.worker(module))
        await until_polled(lab.client, sides.queue, 2)
        yield sides


async def until_polled(client: Client, queue: str, workers: int) -> None:
    """Wait until that many workers poll the queue."""
    while len(await read_other_workers(client, ServedAgents(queue, frozenset()))) < workers:
        await asyncio.sleep(0.05)


async def test_every_run_ends_well_whichever_worker_takes_its_first_task(sides: Sides) -> None:
    """Model calls, tools, local tools, the agent's policy, and the runs of sub-agents: all where the agent is served."""
    expected = {"east_packer": PACKED, "west_clerk": "A is stamped"}
    runs = [(agent, await sides.start(agent)) for _ in range(12) for agent in expected]
    results = await asyncio.gather(*(run.result() for _, run in runs), return_exceptions=True)
    for (agent, run), result in zip(runs, results, strict=True):
        assert not isinstance(result, BaseException), error_of(result) or result
        assert result["output"] == expected[agent], run.id
        assert result["recovered_failures"] == (agent == "east_packer")


async def test_a_run_opens_although_temporal_did_not_list_the_workers_at_first(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot list the others does not know that none of them serves the agent."""
    timeouts = [timedelta(microseconds=1)]

    async def read(client: Client, served: ServedAgents) -> dict[str, str]:
        while timeouts:
            await last_polls(client, served.task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, timeouts.pop())
        return await read_other_workers(client, served)

    monkeypatch.setattr(agent_not_served, "read_other_workers", read)
    runs = [await sides.start(agent) for _ in range(10) for agent in ("east_packer", "west_clerk")]
    results = await asyncio.gather(*(run.result() for run in runs))
    assert {result["status"] for result in results} == {"completed"}
    assert not timeouts


async def test_all_workers_of_the_queue_say_which_agents_there_are(sides: Sides) -> None:
    """Whichever of them is asked."""
    for _ in range(5):
        agents = await AgentReader(sides.lab.client, sides.queue).read()
        assert {"east_packer", "west_clerk"} <= set(agents or ())


async def test_a_workflow_of_ones_own_has_agents_of_both_workers(sides: Sides) -> None:
    runs = [
        await sides.lab.client.start_workflow("BothSides", id=f"both-{uuid.uuid4().hex[:6]}", task_queue=sides.queue)
        for _ in range(2)
    ]
    assert await asyncio.gather(*(run.result() for run in runs)) == [[PACKED, "A is stamped"]] * 2


async def test_a_denial_has_the_agents_words_although_the_other_worker_records_it(sides: Sides) -> None:
    runs = [await sides.start("east_shipper") for _ in range(10)]
    for run in runs:
        await waits_for(run, "person")
        await run.execute_update("decide", {"call_id": "s", "decision": "deny"})
    assert {(await run.result())["output"] for run in runs} == {"in the shipper's words"}


async def test_an_agent_of_no_worker_fails_with_what_is_served(sides: Sides) -> None:
    run = await sides.start("east_shiper")
    with pytest.raises(WorkflowFailureError) as failed:
        await run.result()
    error = error_of(failed.value)
    assert type(error).__name__ == "InvalidRunInputError"
    assert '"agent" is "east_shiper", but this worker serves no agent of that name; it serves: ' in str(error)
    assert str(error).endswith("Nor do the other workers of the task queue serve it.")


async def test_a_run_waits_for_the_worker_of_its_agent_and_says_so_while_another_worker_has_its_workflow(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AGENT_START_TIMEOUT", timedelta(seconds=2))
    sides = Sides(lab)
    async with await sides.worker(WEST):
        async with await sides.worker(EAST):
            await until_polled(lab.client, sides.queue, 2)
            run = await sides.start("east_shipper")
            await waits_for(run, "person")
        await run.execute_update("decide", {"call_id": "s", "decision": "approve"})
        waiting = None
        while waiting is None or waiting.kind != "worker":
            waiting = await WaitReader(lab.client).read(run.id)
            await asyncio.sleep(0.2)
        assert "serves" in waiting.detail
        assert (await run.query("steps"))["steps"][0]["tool_calls"][0]["result"] is None
        async with await sides.worker(EAST):
            result = await run.result()
    assert (result["output"], result["recovered_failures"]) == ("7 g are shipped", 0)


async def test_workers_that_have_a_plugin_take_part(lab: Lab) -> None:
    """With their own workflows and activities beside the agents, and beside a worker of `mulligan worker`."""
    queue = f"sides-{uuid.uuid4().hex[:6]}"
    sides = Sides(lab)
    sides.queue = queue
    address, namespace = lab.client.service_client.config.target_host, lab.client.namespace
    plugin = MulliganPlugin(load=[EAST])
    client = await Client.connect(address, namespace=namespace, plugins=[plugin])
    expected = {"east_packer": PACKED, "west_clerk": "A is stamped"}
    async with await sides.worker(WEST), Worker(client, task_queue=queue, activities=[greet]):
        await until_polled(lab.client, queue, 2)
        runs = [(agent, await sides.start(agent)) for _ in range(6) for agent in expected]
        for agent, run in runs:
            assert (await run.result())["output"] == expected[agent], run.id
        own = ServedAgents(queue, frozenset(load([EAST]).registry.agents)).queue
        polls = await last_polls(lab.client, own, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, timedelta(seconds=5))
        assert list(polls) == [client.identity]


async def test_a_worker_with_a_plugin_ends_with_an_error_if_its_second_worker_stops(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not go on as if it served."""
    address, namespace = lab.client.service_client.config.target_host, lab.client.namespace
    client = await Client.connect(address, namespace=namespace, plugins=[MulliganPlugin(load=[EAST])])
    seconds: list[Worker] = []

    def recorded(*args: Any) -> tuple[list[Worker], list[PollMonitor]]:
        workers, monitors = activity_workers(*args)
        seconds.extend(workers)
        return workers, monitors

    monkeypatch.setattr(plugin_worker, "activity_workers", recorded)
    running = asyncio.create_task(Worker(client, task_queue=f"sides-{uuid.uuid4().hex[:6]}").run())
    while not seconds or not seconds[0].is_running:
        await asyncio.sleep(0.05)
    await seconds[0].shutdown()
    with pytest.raises(WorkerStoppedError, match=r"the worker of task queue 'sides-.*#.*' has stopped"):
        await running


async def test_a_worker_warns_once_of_another_one_that_serves_other_agents(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of none that has stopped, although the server lists its polls for some minutes."""
    said: list[str] = []
    monkeypatch.setattr(other_agents, "say", said.append)
    monkeypatch.setattr(other_agents, "SECONDS_BETWEEN_FIRST_CHECKS", 0.1)
    sides = Sides(lab)
    async with await sides.worker(EAST):
        async with await sides.worker(EAST):
            await asyncio.sleep(1)
            assert said == []
        async with await sides.worker(WEST):
            run = await sides.start("east_packer")
            while not said:
                await asyncio.sleep(0.05)
            # An idle worker polls anew after a minute; one that gets a task does at once.
            while len(said) < 2:
                await (await sides.start("east_packer")).result()
            await run.result()
            await asyncio.sleep(0.5)
    assert len(said) == 2
    assert all(f"another worker of task queue '{sides.queue}' (" in line for line in said)
    async with await sides.worker("tests.support.shop_agents"):
        await until_polled(lab.client, sides.queue, 3)
        await asyncio.sleep(1.5)
    assert len(said) == 2
