"""Updates to runs while workers evict the runs and are killed: no run gets stuck, and each history replays."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.worker import Replayer

from mulligan import data_converter
from mulligan.devserver import DevServer
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.support.temporal import connect_to
from tests.support.worker_process import worker_process

RUNS = int(os.environ.get("STRESS_RUNS", "24"))
"""For a statistic use a thousand: `STRESS_RUNS=1000 uv run --group system pytest -s` with this file."""
AT_ONCE = 12
WORKERS = 2
KILLS_FOR_EACH = 8
"""A worker is killed each time that this many runs have ended."""
STOPPED_OF = 6
"""One of so many runs gets a message and is stopped, so that there are some, whatever chance and the machine do."""


@contextmanager
def workers_may_be_away(counts: Counter[str]) -> Iterator[None]:
    """Ignore and count errors of requests to a worker that was just killed; the caller sends them again."""
    try:
        yield
    except (RPCError, WorkflowQueryFailedError) as error:
        if "TMPRL1100" in str(error):
            raise
        counts["asked again"] += 1


async def say(handle: Any, update: str, argument: dict[str, Any], counts: Counter[str]) -> bool:
    """Send an update once; return whether it was accepted. A refusal because somebody was faster is fine."""
    try:
        with workers_may_be_away(counts):
            await handle.execute_update(update, argument)
            counts[update] += 1
            return True
    except WorkflowUpdateFailedError:
        counts["refused"] += 1
    return False


async def decide(handle: Any, wait: dict[str, Any], chance: random.Random, counts: Counter[str]) -> None:
    """Decide on a waiting call, or answer it."""
    call = {"call_id": wait["call_id"]}
    if wait["kind"] == "question":
        await say(handle, "answer", {**call, "text": "Green."}, counts)
        return
    edited = {"arguments": {"euros": 9}} if chance.random() < 0.3 else {}
    decision: dict[str, Any] = chance.choice([{"decision": "approve", **edited}, {"decision": "deny", "reason": "no"}])
    await say(handle, "decide", {**call, **decision}, counts)


async def send(handle: Any, accepted: list[str], counts: Counter[str], *, stops: bool) -> None:
    """Send two different messages at once, at any moment, and perhaps a stop."""
    texts = [f"And hurry! {uuid.uuid4().hex}" for _ in range(2)]
    sent = await asyncio.gather(*(say(handle, "send_message", {"text": text, "id": text}, counts) for text in texts))
    accepted += [text for text, is_accepted in zip(texts, sent, strict=True) if is_accepted]
    if stops:
        with workers_may_be_away(counts):  # or the run has just ended
            await handle.signal("stop", {"reason": "lunch"})
            counts["stop"] += 1


async def one_run(client: Any, queue: str, number: int, counts: Counter[str]) -> Any:
    """A run from its start to its end, with a person who queries for waiting calls all the time."""
    chance = random.Random(number)
    handle = await client.start_workflow(
        "AgentWorkflow", {"agent": "office", "prompt": "Go."}, id=f"{queue}-{number}", task_queue=queue
    )
    result, accepted = asyncio.create_task(handle.result()), list[str]()
    is_to_be_stopped = number % STOPPED_OF == 0
    while not result.done():
        waits: list[dict[str, Any]] = []
        with workers_may_be_away(counts):
            waits = await handle.query("pending")
        said = [decide(handle, wait, chance, counts) for wait in waits if chance.random() < 0.8]
        if is_to_be_stopped or chance.random() < 0.1:
            said.append(send(handle, accepted, counts, stops=is_to_be_stopped or chance.random() < 0.1))
            is_to_be_stopped = False
        if not result.done():
            await asyncio.gather(*said)
            await asyncio.wait([result], timeout=chance.uniform(0, 0.1))
        else:
            for each in said:
                each.close()
    counts[(await result)["status"]] += 1
    conversation: list[dict[str, Any]] = []
    while not conversation:
        with workers_may_be_away(counts):
            conversation = (await handle.query("messages", args=[0, 1000]))["messages"]
    heard = Counter(message["text"] for message in conversation if message["role"] == "user")
    assert [heard[text] for text in accepted] == [1] * len(accepted)
    return handle


@asynccontextmanager
async def workers_that_are_killed(queue: str, server: DevServer, counts: Counter[str]) -> AsyncIterator[None]:
    """Workers with three runs in their caches, which are killed and replaced one after the other."""

    async def serve(place: int) -> None:
        while True:
            async with worker_process(
                "tests.support.approval_agent",
                queue,
                server,
                MULLIGAN_MAX_CACHED_WORKFLOWS="3",
                MULLIGAN_GRACE_SECONDS="1",
            ) as process:
                before = ended(counts)
                while ended(counts) < before + KILLS_FOR_EACH * (place + 1):
                    await asyncio.sleep(0.1)
                process.kill()
                counts["killed"] += 1
                await process.wait()

    serving = [asyncio.create_task(serve(place)) for place in range(WORKERS)]
    try:
        yield
    finally:
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def ended(counts: Counter[str]) -> int:
    return counts["completed"] + counts["stopped"]


async def test_no_run_gets_stuck_when_workers_forget_runs_and_are_killed(temporal: DevServer) -> None:
    client = await connect_to(temporal)
    queue, counts, few = f"office-{uuid.uuid4().hex[:6]}", Counter[str](), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Any:
        async with few:
            return await one_run(client, queue, number, counts)

    async with workers_that_are_killed(queue, temporal, counts):
        handles = await asyncio.gather(*(one(number) for number in range(RUNS)))
    print(f"  {RUNS} runs: {dict(counts)}", file=sys.stderr)
    assert ended(counts) == RUNS
    replayer = Replayer(workflows=[AgentWorkflow], data_converter=data_converter)
    for handle in handles:
        await replayer.replay_workflow(await handle.fetch_history())
    assert all(counts[said] > 0 for said in ("decide", "answer", "send_message", "stop", "killed"))
