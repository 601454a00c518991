"""Agents whose tools a function returns for each run: on another worker, over a chain of workflow runs, and when it fails."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mulligan.client.origins.resume_run import resume_run
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.run_tools_agents import LISTED, STATE
from tests.support.shop_agents import RAN


@asynccontextmanager
async def worker(lab: Lab, queue: str) -> AsyncIterator[Lab]:
    async with running_worker(lab.client, load(["tests.support.run_tools_agents"]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


@pytest.fixture
def queue() -> str:
    return f"clinic-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex[:8]


def given(key: str, tools: str) -> dict[str, Any]:
    return {"agent": "clinic", "metadata": {"key": key, "tools": tools}, "tenant": "acme", "user": "ada"}


async def waiting(handle: Any) -> None:
    while not await handle.query("pending"):
        await asyncio.sleep(0.05)


async def approve(handle: Any, call_id: str) -> None:
    await handle.execute_update("decide", {"call_id": call_id, "decision": "approve"})


async def test_another_worker_gets_the_same_tools_by_the_same_input_without_the_conversation(
    lab: Lab, queue: str, key: str
) -> None:
    """Arguments that are kept in the run's history are enough: the function sees no prompt. Each worker calls it once."""
    turns = [Turn(calls=[("asked", '{"n": 1}', "c1"), ("plain", '{"n": 2}', "c2"), ("near", '{"n": 3}', "c3")])]
    async with worker(lab, queue) as first:
        handle = await first.start([*turns, call("plain", '{"n": 4}'), DONE], **given(key, "asked plain near"))
        await waiting(handle)
        assert len(LISTED[key]) == 1
    async with worker(lab, queue) as second:
        await approve(handle, "c1")
        ran = await second.look(handle)
    assert ran.result["status"] == "completed"
    assert [each["result"]["error"] for each in ran.calls] == [None] * 4
    assert sorted(arguments["n"] for arguments, *_ in RAN[ran.id]) == [1, 2, 3, 4]
    assert {(tenant, user) for _, tenant, user in RAN[ran.id]} == {("acme", "ada")}
    opened, again = LISTED[key]
    assert opened == again
    assert (opened.prompt, opened.messages, opened.tenant, opened.user) == (None, [], "acme", "ada")
    assert [tool["function"]["name"] for tool in ran.requests[-1].json["tools"]] == ["asked", "plain", "near"]
    assert not [value for span in ran.spans for value in span.attributes.values() if value in ("acme", "ada")]


async def test_a_tool_that_is_gone_is_told_to_the_model_and_the_others_stay(lab: Lab, queue: str, key: str) -> None:
    """Both where the call was prepared before, and where the model makes it now."""
    async with worker(lab, queue) as first:
        turns = [call("asked", '{"n": 1}', "c1"), Turn(calls=[("asked", "{}", None), ("plain", "{}", None)]), DONE]
        handle = await first.start(turns, **given(key, "asked plain"))
        await waiting(handle)
    STATE[key] = "asked"
    async with worker(lab, queue) as second:
        await approve(handle, "c1")
        ran = await second.look(handle)
    kinds = [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls]
    assert kinds == ["tool_exception", "tool_exception", None]
    assert "The tool `asked` is gone" in ran.calls[0]["result"]["text"]
    assert ran.result["status"] == "completed"
    assert len(RAN[ran.id]) == 1


async def test_a_function_that_fails_later_is_called_again_until_it_answers(
    lab: Lab, queue: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.activities.run_agents.SECONDS_BETWEEN_TRIES", 0)
    async with worker(lab, queue) as first:
        turns = [call("asked", '{"n": 1}', "c1"), call("asked", '{"n": 2}', "c2"), DONE]
        handle = await first.start(turns, **given(key, "asked"))
        await waiting(handle)
    STATE[key] = "broken"
    async with worker(lab, queue) as second:
        await approve(handle, "c1")
        ran = await second.look(handle)
    assert len(LISTED[key]) > 2
    assert [each["result"]["error"]["kind"] for each in ran.calls] == ["tool_exception"] * 2
    assert ran.result["status"] == "completed"


async def test_a_chain_a_continuation_and_a_sub_agent_have_the_tools_of_their_runs(
    lab: Lab, queue: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    async with worker(lab, queue) as clinic:
        ran = await clinic.run([*[call("plain", '{"n": 1}')] * 20, DONE], max_steps=30, **given(key, "plain"))
        assert (ran.result["status"], len(RAN[ran.id]), len(LISTED[key])) == ("completed", 20, 1)
        described = await ran.handle.describe()
        assert described.run_id != ran.handle.first_execution_run_id
        clinic.model.script(ran.id, [*[call("plain", '{"n": 1}')] * 20, DONE, call("plain", '{"n": 5}'), DONE])
        resumed = await clinic.look(await resume_run(clinic.client, ran.id, "Once more."))
        assert RAN[resumed.id] == [({"n": 5}, "acme", "ada")]
        assert len(LISTED[key]) == 2
        assert "origin" not in LISTED[key][1].model_dump_json()
        turns = [call("clinic", '{"prompt": "Work."}'), DONE]
        boss = await clinic.run(turns, **{**given(key, "plain"), "agent": "boss"})
        assert boss.result["status"] == "completed"
        assert (LISTED[key][-1].agent, LISTED[key][-1].user, LISTED[key][-1].tenant) == ("clinic", "ada", "acme")


async def test_instructions_and_tools_may_depend_on_the_context(lab: Lab, queue: str, key: str) -> None:
    """They get the resources and what is known of the run; and a strict tool is sent as such."""
    async with worker(lab, queue) as first:
        turns = [call(f"pool_ada_{key}", '{"n": 1}', "c1"), DONE]
        ran = await first.run(turns, **{**given(key, ""), "agent": "informed"}, api="openai")
    sent = ran.requests[0].json
    assert sent["instructions"] == f"Greet ada of acme with pool; informed '' {ran.id}"
    assert [(each["name"], each["strict"]) for each in sent["tools"]] == [(f"pool_ada_{key}", True)]
    assert ran.calls[0]["result"]["text"] == "worked for ada"
