"""Continue-as-new while calls wait for people: thousands of updates may arrive before a decision."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.worker import Replayer

from mulligan import Agent, Say, Script, ToolContext, connect, data_converter, tool
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer, temporal_server
from mulligan.tools import ask_person
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.promise.test_people import REFUND, pending, refusal_of
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.people_agents import discount, nap, refund, wake
from tests.support.shop_agents import RAN

MOST_UPDATES = 60
"""How many updates of one workflow run the test's server accepts, instead of 2,000."""


@tool(needs_approval=True, approval_timeout=6)
def hasty(ctx: ToolContext) -> str:
    """Wait for some seconds only."""
    RAN[ctx.workflow_id].append(("hasty", {}))
    return "done"


helper = Agent(name="helper", model="scripted:helper", instructions="You help.")
clerk = Agent(
    name="clerk",
    model="openai-chat:nobody",
    tools=[refund, discount, ask_person, nap, hasty, helper.as_tool(description="Helps.")],
    max_steps=50,
)
helping = Script("helper", [Say("helped")])


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[DevServer]:
    """A server that accepts few updates of a run."""
    async with temporal_server(dynamic_config=[f"history.maxTotalUpdates={MOST_UPDATES}"]) as server:
        yield server


@pytest.fixture
async def desk(lab: Lab, server: DevServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A worker whose runs continue as new after 60 events, on that server."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    client = await connect(server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"desk-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load_agents([clerk, helper], [helping]), lab.telemetry, at.task_queue):
        yield at


async def write(handle: Any, texts: Sequence[str]) -> None:
    """Send messages, five at a time. Each has an id, so that one that is sent again is the same message."""
    for start in range(0, len(texts), 5):
        await asyncio.gather(
            *(handle.execute_update("send_message", {"text": t, "id": t}) for t in texts[start : start + 5])
        )


async def runs_of(at: Lab, handle: Any) -> int:
    return (await size_of_chain(at.client, handle.id)).runs


async def replay_chain(at: Lab, handle: Any) -> None:
    replayer = Replayer(workflows=[AgentWorkflow], data_converter=data_converter)
    async for run in at.client.list_workflows(f'WorkflowId = "{handle.id}"'):
        await replayer.replay_workflow(
            await at.client.get_workflow_handle(handle.id, run_id=run.run_id).fetch_history()
        )


async def test_a_call_waits_on_while_people_send_more_messages_than_one_workflow_run_accepts(desk: Lab) -> None:
    """The wait, the results of the other calls and each message are carried; then the step ends as any other."""
    calls = [
        ("discount", '{"percent": 5}', "d"),
        ("refund", REFUND, "r"),
        ("helper", '{"prompt": "Help!"}', "h"),
        ("ask_person", '{"question": "Which colour?"}', "q"),
        ("discount", '{"percent": "x"}', "bad"),
    ]
    handle = await desk.start([Turn(calls=calls), DONE], agent="clerk")
    before = await pending(handle, 2)
    while (await handle.query("progress"))["running"]:
        await asyncio.sleep(0.02)
    texts = [f"message {number}" for number in range(3 * MOST_UPDATES)]
    await write(handle, texts[:-20])
    continued = await runs_of(desk, handle)
    assert continued > 2
    assert await handle.query("pending") == before
    assert (await handle.query("progress"))["status"] == "waiting"
    assert (await handle.describe()).raw_description.workflow_execution_info.memo.fields[
        "mulligan_pending"
    ].data == b"1"
    assert "amount.euros" in await refusal_of(
        handle,
        "decide",
        {"call_id": "r", "decision": "approve", "arguments": {"order": 7, "amount": {"euros": 100.5}}},
    )
    edited = {"order": 7, "amount": {"euros": 5}}
    await handle.execute_update("decide", {"call_id": "r", "decision": "approve", "arguments": edited, "by": "Ada"})
    while ("refund", {"order": 7, "euros": 5.0}) not in RAN[handle.id]:
        await asyncio.sleep(0.02)
    await write(handle, texts[-20:])
    assert await runs_of(desk, handle) > continued
    repeated = await refusal_of(handle, "decide", {"call_id": "r", "decision": "deny"})
    assert "no longer waits: it was approved by Ada at" in repeated
    await handle.execute_update("answer", {"call_id": "q", "text": "blue", "by": "Bea"})
    ran = await desk.look(handle)
    assert (ran.result["status"], ran.result["steps"], ran.result["tool_calls"]) == ("completed", 2, 5)
    assert (ran.result["recovered_failures"], ran.result["sub_runs"]) == (1, 1)
    assert RAN[ran.id] == [("discount", {"percent": 5}), ("refund", {"order": 7, "euros": 5.0})]
    texts_of_results = [made["result"]["text"] for made in ran.calls]
    assert texts_of_results[:4] == ["5 % off", "refunded 5 for order 7", "helped", "blue"]
    assert ran.calls[1]["decision"]["before"] == {"order": 7, "amount": {"euros": 12.5}}
    assert json.loads(ran.calls[1]["raw_arguments"]) == ran.calls[1]["decision"]["before"]
    sent = ran.requests[-1].json["messages"]
    [refunded] = [made["function"] for message in sent for made in message.get("tool_calls", ()) if made["id"] == "r"]
    assert json.loads(refunded["arguments"]) == {"order": 7, "amount": {"euros": 5.0}}
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ["d", "r", "h", "q", "bad"]
    assert {m["content"] for m in sent if m["role"] == "user"} == {"Go.", *texts}
    assert len(sent) == 1 + 1 + 5 + len(texts)
    spans = sorted(span.attributes["gen_ai.tool.call.id"] for span in ran.spans_of("ai.toolCall"))
    assert spans == ["bad", "d", "h", "q", "r"]
    decisions = sorted(span.attributes["gen_ai.tool.call.id"] for span in ran.spans_of("agent.decision"))
    assert decisions == ["q", "r"]
    events = (await handle.query("events", args=[0, 1000]))["events"]
    kinds = [event["type"] for event in events]
    assert [kinds.count(kind) for kind in ("waiting", "decided", "tool_call_settled", "step_started")] == [2, 2, 5, 2]
    await replay_chain(desk, handle)


async def test_an_approval_times_out_at_the_same_time_in_whichever_run_of_the_chain(desk: Lab) -> None:
    handle = await desk.start([Turn(calls=[("hasty", "{}", "late")]), DONE], agent="clerk")
    [before] = await pending(handle)
    await write(handle, [f"message {number}" for number in range(40)])
    ran = await desk.look(handle)
    assert await runs_of(desk, handle) > 1
    decision = ran.calls[0]["decision"]
    assert (decision["decision"], decision["since"]) == ("timeout", before["since"])
    assert decision["at"] >= before["until"]
    runs = sorted(
        [run async for run in desk.client.list_workflows(f'WorkflowId = "{handle.id}"')], key=lambda run: run.start_time
    )
    timers = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
        for run in runs
        async for event in desk.client.get_workflow_handle(handle.id, run_id=run.run_id).fetch_history_events()
        if event.HasField("timer_started_event_attributes")
    ]
    assert (timers[0], len(set(timers))) == (6, len(timers))
    assert timers == sorted(timers, reverse=True)
    assert RAN[handle.id] == []


async def test_decisions_are_accepted_at_every_moment_of_a_chain_that_continues_all_the_time(desk: Lab) -> None:
    """Also those that reach a new run before it has loaded what the earlier one carried."""
    calls = [("refund", REFUND, f"r{number}") for number in range(12)]
    handle = await desk.start([Turn(calls=calls), DONE], agent="clerk")
    await pending(handle, 12)
    writing = asyncio.create_task(write(handle, [f"message {number}" for number in range(150)]))
    for number in range(11):
        await handle.execute_update("decide", {"call_id": f"r{number}", "decision": "deny", "by": "Ada"})
        await asyncio.sleep(0.1)
    await writing  # a message that comes after the last decision may ask for another model call
    await handle.execute_update("decide", {"call_id": "r11", "decision": "deny", "by": "Ada"})
    ran = await desk.look(handle)
    assert ran.result["status"] == "completed"
    assert await runs_of(desk, handle) > 1
    assert [made["decision"]["by"] for made in ran.calls] == ["Ada"] * 12
    assert len(ran.spans_of("agent.decision")) == 12
    await replay_chain(desk, handle)


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_run_that_continued_while_it_waited_can_be_stopped_and_cancelled(desk: Lab, how: str) -> None:
    handle = await desk.start(
        [Turn(calls=[("discount", '{"percent": 5}', "d"), ("refund", REFUND, "r")]), DONE], agent="clerk"
    )
    await pending(handle)
    await write(handle, [f"message {number}" for number in range(40)])
    assert await runs_of(desk, handle) > 1
    if how == "cancel":
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.query("progress"))["status"] == "cancelled"
        return
    await handle.execute_update("stop", {"reason": "lunch", "by": "Bea"})
    ran = await desk.look(handle)
    assert (ran.result["status"], ran.result["reason"], ran.result["steps"]) == ("stopped", "lunch", 1)
    assert ran.calls[1]["decision"]["decision"] == "stopped"
    assert len(ran.spans_of("ai.toolCall")) == 2


async def test_a_run_does_not_continue_as_new_while_another_call_of_the_step_runs(desk: Lab) -> None:
    """Its activity belongs to this workflow run. When it has ended, the run continues."""
    handle = await desk.start(
        [Turn(calls=[("nap", '{"seconds": 60}', "n"), ("refund", REFUND, "r")]), DONE], agent="clerk"
    )
    await pending(handle)
    await write(handle, [f"message {number}" for number in range(30)])
    assert (await handle.query("progress"))["running"]
    assert await runs_of(desk, handle) == 1
    await wake()
    while (await handle.query("progress"))["running"]:
        await asyncio.sleep(0.1)
    await write(handle, ["one more"])
    while await runs_of(desk, handle) == 1:
        await asyncio.sleep(0.1)
    await handle.execute_update("decide", {"call_id": "r", "decision": "approve"})
    ran = await desk.look(handle)
    assert [name for name, _ in RAN[ran.id]] == ["nap", "refund"]
    assert ran.calls[0]["result"]["text"] == "slept"


async def test_a_state_that_is_too_large_to_carry_is_not_carried_while_a_call_waits(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CARRY_BYTES", 100)
    handle = await desk.start([call("refund", REFUND, "r"), DONE], agent="clerk")
    await pending(handle)
    await write(handle, [f"message {number}" for number in range(40)])
    await handle.execute_update("decide", {"call_id": "r", "decision": "approve"})
    ran = await desk.look(handle)
    assert (ran.result["status"], await runs_of(desk, handle)) == ("completed", 1)
    await replay_chain(desk, handle)
