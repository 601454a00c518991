"""Hundreds of messages to runs that continue as new, end, or are stopped."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan import connect
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import Lab

RUNS, SENDERS = 8, 3


@pytest.fixture
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server that suggests to continue as new after 60 events, and a worker."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"said-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.people_agents"]), lab.telemetry, at.task_queue):
        yield at


async def send(handle: Any, sender: int, accepted: list[str], refused: list[Exception]) -> None:
    """Send messages one after the other, each twice with the same id, until the run accepts no more."""
    rng = random.Random(f"{handle.id}{sender}")
    for number in range(10_000):
        text = f"{sender}:{number}"
        try:
            for _ in range(rng.choice((1, 1, 2))):
                told = await handle.execute_update("send_message", {"text": text, "id": text})
                assert told == {"accepted": True, "id": text}
                if not accepted or accepted[-1] != text:
                    accepted.append(text)
        except (WorkflowUpdateFailedError, RPCError) as error:
            refused.append(error)
            return
        await asyncio.sleep(rng.choice((0, 0.005, 0.05)))


async def bombard(at: Lab, *, stop: bool) -> tuple[int, int]:
    """One run. Return how many messages it accepted, and the number of runs of its chain."""
    run_id = f"listen-{uuid.uuid4().hex[:8]}"
    given = {"agent": "listener", "prompt": "Go."}
    handle = await at.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=at.task_queue)
    accepted: list[list[str]] = [[] for _ in range(SENDERS)]
    refused: list[Exception] = []
    senders = [asyncio.create_task(send(handle, n, accepted[n], refused)) for n in range(SENDERS)]
    if stop:
        await asyncio.sleep(2)
        await handle.execute_update("stop", {})
    result = await handle.result()
    await asyncio.gather(*senders)
    for error in refused:
        if isinstance(error, RPCError):
            assert error.status == RPCStatusCode.NOT_FOUND
        else:
            assert "is ending" in str(getattr(error, "cause", error))
    assert result["status"] in (("stopped",) if stop else ("completed", "max_steps"))
    page = await handle.query("messages", args=[0, 10_000])
    heard = [message["text"] for message in page["messages"] if message["role"] == "user"]
    assert heard[0] == "Go."
    assert page["next"] is None
    for sender in range(SENDERS):
        # In the order in which they were accepted, without refused ones and without duplicates.
        own = [text for text in heard[1:] if text.startswith(f"{sender}:")]
        # If the response to the last one was lost, the run may have accepted it.
        assert own == accepted[sender] or own[:-1] == accepted[sender]
        assert len(own) == len(set(own))
    return len(heard) - 1, (await size_of_chain(at.client, run_id)).runs


async def test_no_accepted_message_is_lost_or_doubled_when_runs_end_stop_or_continue(chained: Lab) -> None:
    """Messages arrive at the moment of the end, of the stop and of continue-as-new."""
    runs = [bombard(chained, stop=number % 2 == 1) for number in range(RUNS)]
    took = await asyncio.gather(*runs)
    assert sum(messages for messages, _ in took) > 300
    assert sum(chain for _, chain in took) > 3 * RUNS
