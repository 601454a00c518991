"""Forks: a run that begins where another one was, and sends the model what that sent, without repeating a call."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import connect, fork_run
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, Ran, call
from tests.support.compaction_agents import PROMPT, READ, reading
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

ADA = '{"customer": "Ada"}'


@pytest.fixture(scope="module")
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server on which runs continue as new after a few steps."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"fork-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        yield at


async def fork(lab: Lab, ran: Ran, **how: Any) -> Ran:
    """Fork a run and wait for the end; `requests` are those of the fork alone."""
    before = len(lab.model.requests_of(ran.id))
    forked = await lab.look(await fork_run(lab.client, ran.id, **how))
    forked.requests = lab.model.requests_of(ran.id)[before:]
    return forked


async def test_a_fork_of_each_step_sends_its_request_and_repeats_no_call(lab: Lab) -> None:
    """Its numbers go on, its steps before are shared, and memo, span and steps name where it comes from."""
    turns = [call("search_orders", ADA), Turn(calls=[("now", "{}", None), ("sarch", "{", None)]), call("refuse"), DONE]
    ran = await lab.run(turns, max_steps=9)
    for step in range(1, 5):
        forked = await fork(lab, ran, at=step)
        assert forked.requests[0].body == ran.requests[step - 1].body
        assert (forked.result["status"], forked.result["steps"]) == ("completed", 4)
        assert [each.get("shared", False) for each in forked.steps] == [n < step for n in range(1, 5)]
        assert RAN[forked.id] == []
        origin = {"id": ran.id, "run_id": ran.handle.first_execution_run_id, "step": step}
        assert (await (await forked.handle.describe()).memo())["forked_from"] == origin
    assert len(RAN[ran.id]) == 3


async def test_a_fork_of_a_compacted_chain_sends_the_request_of_each_step(chained: Lab) -> None:
    """Whatever of the chain has the step: also one before the compactions, and one whose fork is forked again."""
    ran = await chained.run(reading(14), agent="page_reader", prompt=PROMPT)
    sent = [request for request in ran.requests if request.json.get("tools")]
    for step in range(1, 16):
        forked = await fork(chained, ran, at=step)
        assert forked.requests[0].body == sent[step - 1].body, step
        assert READ[forked.id] == []
