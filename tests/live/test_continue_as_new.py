"""Continue-as-new at a step boundary: to its user the chain is one run."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client, WorkflowHistoryEventFilterType

from mulligan import connect, resume_run
from mulligan.client.read_run import ChainSize, size_of_chain
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_resets import points_of, reset
from tests.support.compaction_agents import reading
from tests.support.lab import DONE, Lab, call

CLOSED = WorkflowHistoryEventFilterType.CLOSE_EVENT


@pytest.fixture
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server that suggests to continue as new after 60 events, and a worker."""
    client: Client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"chain-{uuid.uuid4().hex[:6]}")
    loaded = load(
        [
            "tests.support.shop_agents",
            "tests.support.clock_agent",
            "tests.support.compaction_agents",
            "tests.support.sub_agent_teams",
            "examples.chat",
        ]
    )
    async with running_worker(client, loaded, lab.telemetry, at.task_queue):
        yield at


async def test_a_user_workflow_hands_over_its_state_and_loses_no_signal(chained: Lab) -> None:
    """`DurableAgent` exports its state and loads it; waiting signals are carried over, and none is handled twice."""
    messages = [f"message {n}" for n in range(16)]
    handle = await chained.client.start_workflow(
        "Chat", args=["chatty", [], [], b""], id=f"chat-{uuid.uuid4().hex[:8]}", task_queue=chained.task_queue
    )
    for message in messages:
        await handle.signal("say", message)
    answers: list[str] = []
    while len(answers) < 16:
        await asyncio.sleep(0.05)
        answers = await handle.query("answers")
    assert answers == [f"{n}: {message}" for n, message in enumerate(messages, 1)]
    size = await size_of_chain(chained.client, handle.id)
    await handle.terminate()
    assert size.runs > 2


async def test_the_limit_of_sub_runs_is_for_the_whole_chain_and_a_resumed_run_has_its_own(chained: Lab) -> None:
    asking = call("researcher", '{"prompt": "it"}')
    ran = await chained.run([asking] * 12 + [DONE], agent="lead", max_steps=100, max_sub_runs=8)
    assert (await size_of_chain(chained.client, ran.id)).runs > 2
    assert [one["result"]["text"] == "found: it" for one in ran.calls] == [True] * 8 + [False] * 4
    assert "as many agents as they may" in ran.calls[8]["result"]["text"]
    assert ran.result["sub_runs"] == 8
    chained.model.script(ran.id, [asking] * 12 + [DONE] + [asking] * 9 + [DONE])
    again = await resume_run(chained.client, ran.id, "Once more.")
    resumed = await chained.look(again)
    assert [one["result"]["text"] == "found: it" for one in resumed.calls[-9:]] == [True] * 8 + [False]


async def test_steps_messages_usage_and_trace_continue_over_a_chain_of_runs(chained: Lab) -> None:
    """The model gets one conversation, and no span is made twice."""
    steps = 25
    turns = [call("clik") if n == 3 else call("search_orders", '{"customer": "Ada"}') for n in range(steps)]
    ran = await chained.run([*turns, DONE], max_steps=100)
    runs = [run_id := ran.handle.first_execution_run_id]
    described = []
    while run_id:
        one = chained.client.get_workflow_handle(ran.id, run_id=run_id)
        described.append((await one.describe()).raw_description.workflow_execution_info)
        last = [event async for event in one.fetch_history_events(event_filter_type=CLOSED)][-1]
        runs += filter(None, [run_id := last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id])
    assert len(runs) > 3
    events, size = sum(info.history_length for info in described), sum(info.history_size_bytes for info in described)
    assert await size_of_chain(chained.client, ran.id) == ChainSize(len(runs), events, size)
    messages = await ran.handle.query("messages", args=[0, 1000])
    assert ran.result["status"] == "completed"
    assert (ran.result["steps"], ran.result["tool_calls"], ran.result["recovered_failures"]) == (steps + 1, steps, 1)
    assert len(ran.steps) == steps + 1
    assert messages["total"] == 2 * steps + 2
    assert ran.result["usage"]["input_tokens"] == 10 * (steps + 1)
    assert len(ran.requests) == steps + 1
    assert len(ran.requests[-1].json["messages"]) == 2 + 2 * steps
    assert len({span.span_id for span in ran.spans}) == len(ran.spans)
    names = [len(ran.spans_of(name)) for name in ("invoke_agent shop", "agent.finish", "ai.toolCall")]
    assert names == [1, 1, steps]
    assert len(ran.spans) == 2 * steps + 3


@pytest.mark.parametrize(("limit", "value"), [("CONTINUE_AS_NEW_EVENTS", 60), ("CONTINUE_AS_NEW_GROWTH_BYTES", 15_000)])
async def test_a_run_continues_as_new_by_its_own_growth_before_the_server_suggests_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """The test server suggests it at 4,096 events. The growth of the run counts without the state that it began with."""
    monkeypatch.setattr(limits, limit, value)
    # The carried state is larger than the limit: if it were counted, the run would continue as new at each step.
    noise = random.Random(6).randbytes(20_000).hex()
    ran = await lab.run([*[call("now")] * 15, DONE], prompt=noise, max_steps=100)
    assert (ran.result["status"], len(ran.steps)) == ("completed", 16)
    size = await size_of_chain(lab.client, ran.id)
    assert 2 < size.runs < 8


async def test_a_run_whose_state_is_too_large_does_not_continue_as_new(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    monkeypatch.setattr(limits, "CARRY_BYTES", 100)
    ran = await lab.run([*[call("now")] * 15, DONE], max_steps=100)
    assert (ran.result["status"], len(ran.steps)) == ("completed", 16)
    assert (await size_of_chain(lab.client, ran.id)).runs == 1


async def test_a_reset_in_the_middle_of_a_chain_restarts_from_the_state_carried_over(chained: Lab) -> None:
    """`temporal workflow reset` of the second run of a chain."""
    ran = await chained.run([*[call("now")] * 15, DONE], max_steps=100)
    first = chained.client.get_workflow_handle(ran.id, run_id=ran.handle.first_execution_run_id)
    last = [event async for event in first.fetch_history_events(event_filter_type=CLOSED)][-1]
    second = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    begun = chained.client.get_workflow_handle(ran.id, run_id=second)
    again = await reset(chained, begun, (await points_of(begun))[0])
    told = await again.result()
    assert (told["status"], told["output"], told["steps"], told["trace_id"]) == (
        "completed",
        "done",
        16,
        ran.result["trace_id"],
    )
    messages = (await chained.client.get_workflow_handle(ran.id).query("messages", args=[0, 1000]))["messages"]
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 15, "assistant"]


async def test_a_user_workflow_hands_over_the_summary_of_a_compacted_conversation(chained: Lab) -> None:
    """The summary replaces the summarised messages in the carried state, turn after turn."""
    run_id = f"chat-{uuid.uuid4().hex[:8]}"
    chained.model.script(run_id, reading(12))
    handle = await chained.client.start_workflow(
        "BookClub", args=[f"openai-chat:{run_id}", 6, [], b""], id=run_id, task_queue=chained.task_queue
    )
    assert await handle.result() == ["heron, after 12"] * 6
    assert (await size_of_chain(chained.client, run_id)).runs > 1
    asked = [json.dumps(request.json["messages"]) for request in chained.model.requests_of(run_id)]
    assert sum("You sum up the earlier part" in text for text in asked) > 1
    assert max(map(len, asked)) < 40_000
