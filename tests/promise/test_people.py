"""People and runs: approvals, questions, messages, stop and cancel."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import Field
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.service import RPCError

from mulligan import Agent, Tool, ToolCall, ToolContext, error_of, tool
from mulligan.activities.answers.prepare_call import accepted
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.http_server import http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.people_agents import refund, wake
from tests.support.shop_agents import RAN

REFUND = '{"order": 7, "amount": {"euros": 12.5}}'


async def pending(handle: Any, count: int = 1) -> list[dict[str, Any]]:
    """The waiting calls, as soon as there are `count` of them."""
    while len(found := await handle.query("pending")) < count:
        await asyncio.sleep(0.02)
    return list(found)


async def refusal_of(handle: Any, update: str, argument: Any) -> str:
    """The sentence with which an update is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await handle.execute_update(update, argument)
    error = error_of(caught.value)
    assert error is not None
    assert error.type == "UpdateRefusedError"
    return error.message


async def test_an_approved_call_runs_as_approved_and_the_decision_is_recorded(lab: Lab) -> None:
    """Approval is requested once, for the validated call. Who decided and when is in the step and on the spans."""
    handle = await lab.start([call("refund", "{'order': '7', 'amount': {'euros': 12.5},}"), DONE], agent="desk")
    (asked,) = await pending(handle)
    assert asked.pop("since").endswith("Z")
    assert asked == {
        "call_id": asked["call_id"],
        "tool": "refund",
        "arguments": {"order": 7, "amount": {"euros": 12.5}},
        "kind": "approval",
        "text": 'refund {"order": 7, "amount": {"euros": 12.5}}',
        "agent": "desk",
        "step": 1,
    }
    assert (await handle.query("progress"))["status"] == "waiting"
    assert (await handle.describe()).raw_description.workflow_execution_info.memo.fields[
        "mulligan_pending"
    ].data == b"1"
    said = {"call_id": asked["call_id"], "decision": "approve", "by": "Ada", "reason": "a good customer"}
    assert await handle.execute_update("decide", said) == {"accepted": True, "call_id": asked["call_id"]}
    ran = await lab.look(handle)
    assert ran.result["status"] == "completed"
    assert RAN[ran.id] == [("refund", {"order": 7, "euros": 12.5})]
    (made,) = ran.calls
    decision = made["decision"]
    assert (decision["decision"], decision["by"], decision["reason"]) == ("approve", "Ada", "a good customer")
    assert decision["since"] <= decision["at"]
    assert "edited" not in decision
    assert made["result"]["error"] is None
    (span,) = ran.spans_of("ai.toolCall")
    assert span.attributes["mulligan.decision.result"] == "approve"
    assert span.attributes["mulligan.decision.by"] == "Ada"
    assert [s.attributes["gen_ai.tool.call.id"] for s in ran.spans_of("agent.request")] == [made["id"]]
    assert [s.attributes["mulligan.decision.result"] for s in ran.spans_of("agent.decision")] == ["approve"]
    assert "a good customer" not in str([s.attributes for s in ran.spans])
    assert await handle.query("pending") == []
    assert (await handle.describe()).raw_description.workflow_execution_info.memo.fields[
        "mulligan_pending"
    ].data == b"0"


async def test_an_edit_is_validated_in_a_thread(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a megabyte, and the worker's event loop serves all other runs."""
    threads: list[int] = []

    def in_thread(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return accepted(*arguments)

    monkeypatch.setattr("mulligan.activities.check_edit.accepted", in_thread)
    handle = await lab.start([call("refund", REFUND), DONE], agent="desk")
    (waiting,) = await pending(handle)
    edit = {"call_id": waiting["call_id"], "decision": "approve", "arguments": {"order": 7, "amount": {"euros": 5}}}
    await handle.execute_update("decide", edit)
    await lab.look(handle)
    assert threads
    assert threading.get_ident() not in threads


async def test_edited_arguments_are_validated_before_they_are_accepted(lab: Lab) -> None:
    """As a model's arguments are: by the schema, the types and the guard."""
    handle = await lab.start([call("refund", REFUND), DONE], agent="desk")
    (asked,) = await pending(handle)
    edit = {"call_id": asked["call_id"], "decision": "approve"}

    async def refusal(arguments: Any) -> str:
        return await refusal_of(handle, "decide", {**edit, "arguments": arguments})

    assert "amount.euros" in await refusal({"order": 7, "amount": {"euros": 100.5}})
    assert 'has fields that are not known: "ordr"' in await refusal({"order": 7, "amount": {"euros": 1}, "ordr": 7})
    assert "order" in await refusal({"amount": {"euros": 1}})
    assert "parts of a cent" in await refusal({"order": 7, "amount": {"euros": 1.001}})
    assert "order 13 is not touched" in await refusal({"order": 13, "amount": {"euros": 1}})
    assert "arguments" in await refusal([1])
    assert "denied does not run" in await refusal_of(handle, "decide", {**edit, "decision": "deny", "arguments": {}})
    assert len(await handle.query("pending")) == 1
    assert RAN[handle.id] == []
    await handle.execute_update("decide", {**edit, "arguments": {"order": 7, "amount": {"euros": 5}}, "by": "Ada"})
    ran = await lab.look(handle)
    assert RAN[ran.id] == [("refund", {"order": 7, "euros": 5.0})]
    (made,) = ran.calls
    assert made["arguments"] == {"order": 7, "amount": {"euros": 5.0}}
    assert made["raw_arguments"] == REFUND
    assert made["decision"]["edited"]
    assert made["decision"]["before"] == {"order": 7, "amount": {"euros": 12.5}}
    assert ran.spans_of("ai.toolCall")[0].attributes["mulligan.decision.edited"] is True
    assert ran.result["repairs"] == 0


@tool(needs_approval=True)
def greet(
    name: str,
    title: Annotated[str, Field(pattern=r"^(\w+\s?)+$")],
    ctx: ToolContext,
) -> str:
    """Greet."""
    return f"hello {title} {name}"


async def test_patterns_of_edited_arguments_are_those_of_the_tools_types(lab: Lab) -> None:
    """The activity validates: in the workflow, Python's own `re` took for ever for such a pattern. An edit with very many
    faults is refused as well: a refusal with all of them had 17 MB."""
    queue = f"patterns-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    agent = Agent(name="greeter", model="openai-chat:none", tools=[greet])
    async with running_worker(lab.client, load_agents([agent], []), lab.telemetry, queue):
        handle = await at.start([call("greet", '{"name": "Ada", "title": "Dr"}'), DONE], agent="greeter")
        (asked,) = await pending(handle)
        edit = {"call_id": asked["call_id"], "decision": "approve"}
        slow = {"name": "Ada", "title": "a" * 40 + "!"}
        assert "title: String should match pattern" in await refusal_of(handle, "decide", {**edit, "arguments": slow})
        deep: Any = "x"
        for _ in range(150):
            deep = [deep]
        refusal = await refusal_of(handle, "decide", {**edit, "arguments": {"name": deep}})
        assert "nested more than 100 levels deep" in refusal
        many = {"name": ["x"] * 10, **{f"n{number}": 1 for number in range(60_000)}}
        refusal = await refusal_of(handle, "decide", {**edit, "arguments": many})
        assert "name: Input should be a valid string" in refusal
        assert 'has fields that are not known: "n0", "n1",' in refusal
        assert refusal.endswith("and 59,980 more.")
        assert len(refusal) < 5_000
        async with http_server(lab.client) as door:
            unknown = {**edit, "arguments": {"name": "Ada", "title": "Dr", "nme": "x"}}
            response = await door.http.post(f"/api/runs/{handle.id}/decisions", json=unknown)
        assert response.status_code in (409, 422)
        assert 'has fields that are not known: "nme"' in response.json()["detail"]
        await handle.execute_update("decide", {**edit, "arguments": {"name": "Zoë", "title": "Prof Dr"}})
        ran = await at.look(handle)
        types = [event.event_type async for event in handle.fetch_history_events()]
    assert ran.calls[0]["result"]["text"] == "hello Prof Dr Zoë"
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in types
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT not in types


async def test_calls_that_need_no_decision_run_while_others_wait(lab: Lab) -> None:
    """Decisions may come in any order; results are in the order of the calls."""
    calls = [
        ("refund", REFUND, "r"),
        ("discount", '{"percent": 5}', "small"),
        ("ask_person", '{"question": "Which colour?"}', "q"),
        ("discount", '{"percent": 20}', "large"),
        ("discount", '{"percent": 30}', "larger"),
        ("refund", '{"order": 7, "amount": {"euros": -1}}', "invalid"),
        ("discount", '{"percent": 99}', "unsure"),
    ]
    handle = await lab.start([Turn(calls=calls), DONE], agent="desk")
    waits = {each["call_id"]: each for each in await pending(handle, 4)}
    assert list(waits) == ["r", "q", "large", "larger"]
    assert waits["q"]["text"] == "Which colour?"
    while ("discount", {"percent": 5}) not in RAN[handle.id]:
        await asyncio.sleep(0.02)
    await handle.execute_update("decide", {"call_id": "larger", "decision": "deny", "reason": "too much", "by": "Ada"})
    await handle.execute_update("answer", {"call_id": "q", "text": "green", "by": "Bob"})
    await handle.execute_update("decide", {"call_id": "large", "decision": "approve"})
    await handle.execute_update("decide", {"call_id": "r", "decision": "deny"})
    ran = await lab.look(handle)
    told = [(made["id"], made["result"]["text"], (made["result"]["error"] or {}).get("kind")) for made in ran.calls]
    assert told[:5] == [
        ("r", "`refund` was not run: a person denied it.", "denied"),
        ("small", "5 % off", None),
        ("q", "green", None),
        ("large", "20 % off", None),
        ("larger", "`discount` was not run: Ada denied it: too much", "denied"),
    ]
    assert told[5][2] == "invalid_arguments"
    failed = "`discount` was not run: its policy failed: RuntimeError: cannot tell"
    assert told[6] == ("unsure", failed, "denied")
    assert ran.result["recovered_failures"] == 4
    errors = [span for span in ran.spans_of("ai.toolCall") if span.status == "ERROR"]
    assert sorted(span.attributes["error.type"] for span in errors) == ["denied"] * 3 + ["invalid_arguments"]
    assert all(span.attributes["mulligan.recovered"] for span in errors)
    assert len(ran.spans_of("ai.toolCall")) == 7
    assert len(ran.spans_of("agent.decision")) == 4


async def test_an_invalid_decision_is_refused_with_a_sentence_and_changes_nothing(lab: Lab) -> None:
    """Decided twice, too late, for an unknown call, of the wrong kind, or invalid."""
    handle = await lab.start(
        [Turn(calls=[("refund", REFUND, "r"), ("ask_person", '{"question": "?"}', "q")]), DONE], agent="desk"
    )
    await pending(handle, 2)
    assert '"approve" or "deny"' in (await refusal_of(handle, "decide", {"call_id": "r", "decision": "maybe"})).replace(
        "'", '"'
    )
    assert '"call_id" is missing' in await refusal_of(handle, "decide", {"decision": "deny"})
    assert "not a known field" in await refusal_of(handle, "decide", {"call_id": "r", "decision": "deny", "why": "x"})
    assert 'No call "x" waits' in await refusal_of(handle, "decide", {"call_id": "x", "decision": "deny"})
    assert "answer" in await refusal_of(handle, "decide", {"call_id": "q", "decision": "deny"})
    assert "decide" in await refusal_of(handle, "answer", {"call_id": "r", "text": "yes"})
    assert "cannot be taken" in await refusal_of(handle, "send_message", "just text")
    assert "bytes" in await refusal_of(handle, "send_message", {"text": "x" * 1_000_001})
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("decide")
    await handle.execute_update("decide", {"call_id": "r", "decision": "deny", "by": "Ada"})
    assert "it was denied by Ada at 20" in await refusal_of(handle, "decide", {"call_id": "r", "decision": "approve"})
    await handle.execute_update("answer", {"call_id": "q", "text": "!"})
    ran = await lab.look(handle)
    assert ran.result["status"] == "completed"
    with pytest.raises(RPCError, match="completed"):
        await handle.execute_update("send_message", {"text": "too late"})


async def test_a_call_that_nobody_decides_on_in_time_is_not_run(lab: Lab) -> None:
    """`approval_timeout` applies to tools, and to questions with a schema."""
    ran = await lab.run([call("hasty"), call("ask_quickly", '{"question": "?", "choices": ["a"]}'), DONE], agent="desk")
    assert [made["result"]["error"]["message"] for made in ran.calls] == [
        "`hasty` was not run: nobody approved of it in time.",
        "`ask_quickly` was not run: nobody answered in time.",
    ]
    assert [made["decision"]["decision"] for made in ran.calls] == ["timeout", "timeout"]
    assert RAN[ran.id] == []


async def test_a_message_reaches_the_model_once_at_the_next_step(lab: Lab) -> None:
    """Messages sent during a model call, a tool call and a wait."""
    first, last = asyncio.Event(), asyncio.Event()
    turns = [
        Turn(calls=[("nap", '{"seconds": 60}', None)], wait=first),
        call("refund", REFUND),
        Turn(text="Is that all?", wait=last),
        Turn(text="done"),
    ]
    handle = await lab.start(turns, agent="desk")
    assert await handle.execute_update("send_message", {"text": "one", "id": "m1"}) == {"accepted": True, "id": "m1"}
    assert await handle.execute_update("send_message", {"text": "one again", "id": "m1"}) == {
        "accepted": True,
        "id": "m1",
    }
    first.set()
    while not RAN[handle.id]:
        await asyncio.sleep(0.01)
    without = await handle.execute_update("send_message", {"text": "two"})
    assert without["accepted"]
    assert without["id"]
    await wake()
    (asked,) = await pending(handle)
    await handle.execute_update("send_message", {"text": "three"})
    await handle.execute_update("decide", {"call_id": asked["call_id"], "decision": "approve"})
    while len(lab.model.requests_of(handle.id)) < 3:
        await asyncio.sleep(0.01)
    await handle.execute_update("send_message", {"text": "four"})  # while the model writes its last answer
    last.set()
    ran = await lab.look(handle)
    messages = (await handle.query("messages", args=[0, 100]))["messages"]
    users = [message["text"] for message in messages if message["role"] == "user"]
    assert users == ["Go.", "one", "two", "three", "four"]
    assert ran.result["output"] == "done"
    assert len(ran.steps) == 4


async def test_a_message_accepted_in_the_last_step_is_in_the_conversation(lab: Lab) -> None:
    """No step is left to answer it."""
    # Sent with the start, it arrives before the run has begun, and is added before the first step.
    last = asyncio.Event()
    start = lab.starting([Turn(text="one moment", wait=last)], agent="desk", max_steps=1)
    await lab.client.execute_update_with_start_workflow(
        "send_message", {"text": "wait!"}, start_workflow_operation=start
    )
    handle = await start.workflow_handle()
    while not lab.model.requests_of(handle.id):
        await asyncio.sleep(0.01)
    await handle.execute_update("send_message", {"text": "and this!"})
    last.set()
    ran = await lab.look(handle)
    messages = (await handle.query("messages", args=[0, 100]))["messages"]
    assert ran.result["status"] == "completed"
    assert [m["text"] for m in messages] == ["Go.", "wait!", "one moment", "and this!"]


async def _during_the_model_call(lab: Lab, handle: Any) -> None:
    while not lab.model.requests_of(handle.id):
        await asyncio.sleep(0.01)


async def _during_the_tool_call(lab: Lab, handle: Any) -> None:
    while not RAN[handle.id]:
        await asyncio.sleep(0.01)


async def _during_the_wait(lab: Lab, handle: Any) -> None:
    await pending(handle)


async def _at_once(lab: Lab, handle: Any) -> None:
    return None


NAP = call("nap", '{"seconds": 60}')
STOPS: dict[str, tuple[Callable[[Lab, Any], Any], Turn, list[Any]]] = {
    "at once": (_at_once, NAP, []),
    "model": (_during_the_model_call, NAP, ["denied"]),
    "tool": (_during_the_tool_call, NAP, [None]),
    "wait": (_during_the_wait, Turn(calls=[("refund", REFUND, "r"), *NAP.calls]), ["denied", None]),
}
"""What the run does when it ends, the model's answer, and the kinds of its calls' results after a stop."""


def writing_on(when: str, turn: Turn) -> tuple[Turn, asyncio.Event]:
    """The answer, and an event: until it is set, the model writes, if that is what the run does when it ends."""
    written = asyncio.Event()
    return (replace(turn, wait=written) if when in ("at once", "model") else turn), written


@pytest.mark.parametrize("when", STOPS)
async def test_a_stopped_run_finishes_what_runs_and_begins_nothing_new(lab: Lab, when: str) -> None:
    """The result has everything up to then, and each call of the conversation has a result."""
    until, turn, told = STOPS[when]
    turn, written = writing_on(when, turn)
    handle = await lab.start([turn, *[DONE] * 3], agent="desk")
    await until(lab, handle)
    assert await handle.execute_update("stop", {"reason": "lunch", "by": "Ada"}) == {"accepted": True}
    written.set()
    if when in ("tool", "wait"):
        await wake()
    ran = await lab.look(handle)
    assert ran.result["status"] == "stopped"
    assert ran.result["reason"] == "lunch"
    kinds = [(made["result"]["error"] or {}).get("kind") for made in ran.calls]
    assert kinds == told or (when == "at once" and kinds in ([], ["denied"]))
    assert (await handle.query("progress"))["status"] == "stopped"
    (finish,) = ran.spans_of("agent.finish")
    assert finish.attributes["mulligan.status"] == "stopped"
    assert finish.status == "UNSET"
    if when in ("model", "wait"):
        first = ran.calls[0]
        assert "the run was stopped first: lunch" in first["result"]["text"]
        assert ran.result["recovered_failures"] == 0
        assert first["decision"]["by"] == "Ada"


@pytest.mark.parametrize("when", STOPS)
async def test_a_cancelled_run_cancels_its_activities_and_closes_its_trace(lab: Lab, when: str) -> None:
    """At any moment of the run."""
    until, turn, _ = STOPS[when]
    turn, written = writing_on(when, turn)
    handle = await lab.start([turn, *[DONE] * 3], agent="desk")
    await until(lab, handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    written.set()
    assert type(caught.value.cause).__name__ == "CancelledError"
    assert await handle.query("pending") == []
    if when != "at once":
        lab.telemetry.flush()
        roots = [s for s in lab.otlp.spans() if s.attributes.get("temporal.workflow_id") == handle.id]
        (finish,) = [s for s in lab.otlp.spans(trace_id=roots[0].trace_id) if s.name == "agent.finish"]
        assert finish.attributes["mulligan.status"] == "cancelled"


async def test_stopping_one_of_two_agents_in_a_workflow_leaves_the_other_running(lab: Lab) -> None:
    """Both wait at once, with the same call id."""
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    first_waits = asyncio.Event()
    for side in "ab":
        asks = Turn(calls=[("refund", REFUND, "r")], wait=first_waits if side == "b" else None)
        turns = [asks, Turn(text=f"done {side}", delay=0.2)]
        lab.model.script(f"{run_id}-{side}", turns)
    models = [f"openai-chat:{run_id}-{side}" for side in "ab"]
    handle = await lab.client.start_workflow("TwoDesks", models, id=run_id, task_queue="agents")
    await pending(handle)
    first_waits.set()
    waits = await pending(handle, 2)
    assert [(wait["agent"], wait.get("conversation", "0")) for wait in waits] == [("desk", "0"), ("desk", "1")]
    approve = {"call_id": "r", "decision": "approve"}
    assert 'name one as "conversation"' in await refusal_of(handle, "decide", approve)
    assert 'name one as "conversation"' in await refusal_of(handle, "send_message", {"text": "Hello?"})
    assert "There is no conversation" in await refusal_of(
        handle, "send_message", {"text": "Hello?", "conversation": "7"}
    )
    assert await handle.execute_update("answer", "hm") == "own: hm"
    await handle.execute_update("send_message", {"text": "Hello?", "conversation": "1"})
    await handle.execute_update("stop", {"conversation": "0", "reason": "closed"})
    await handle.execute_update("decide", {**approve, "conversation": "1"})
    left, right = await handle.result()
    assert (left["status"], left["reason"]) == ("stopped", "closed")
    assert (right["status"], right["output"]) == ("completed", "done b")
    said = [message["content"] for message in lab.model.requests_of(f"{run_id}-b")[-1].json["messages"]]
    assert said[-1] == "Hello?"
    assert RAN[run_id] == [("refund", {"order": 7, "euros": 12.5})]


async def test_a_cancelled_run_waits_until_all_its_calls_have_ended(lab: Lab) -> None:
    """Concurrent calls each notice the cancellation at their next heartbeat, and close their spans."""
    naps = [("nap", '{"seconds": 60}', f"n{number}") for number in range(3)]
    handle = await lab.start([Turn(calls=naps)], agent="desk")
    while len(RAN[handle.id]) < len(naps):
        await asyncio.sleep(0.2)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    lab.telemetry.flush()
    [root] = [s for s in lab.otlp.spans() if s.attributes.get("temporal.workflow_id") == handle.id]
    spans = lab.otlp.spans(trace_id=root.trace_id)
    ended = [s.attributes["error.type"] for s in spans if s.name == "ai.toolCall"]
    assert ended == ["cancelled"] * len(naps)
    [finish] = [s for s in spans if s.name == "agent.finish"]
    assert all(s.end_ns <= finish.end_ns for s in spans)


async def test_stop_does_not_wait_for_a_model_that_never_answers(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model call is given up after the grace period; the run ends as stopped, not as cancelled."""
    monkeypatch.setattr(limits, "STOP_GRACE", timedelta(seconds=1))
    never = asyncio.Event()
    handle = await lab.start([call("nap", '{"seconds": 0}'), Turn(text="late", wait=never)], agent="desk")
    while len(lab.model.requests_of(handle.id)) < 2:
        await asyncio.sleep(0.02)
    await handle.execute_update("stop", {"reason": "enough"})
    ran = await lab.look(handle)
    never.set()
    assert (ran.result["status"], ran.result["steps"], ran.result["reason"]) == ("stopped", 1, "enough")
    (finish,) = ran.spans_of("agent.finish")
    assert finish.attributes["mulligan.status"] == "stopped"


async def test_a_model_call_that_fails_after_a_stop_does_not_fail_the_run(lab: Lab) -> None:
    """It ends as stopped, with everything up to then."""
    goes = asyncio.Event()
    refuses = Turn(wait=goes, failure=Failure(status=400, wait=goes))
    handle = await lab.start([call("nap", '{"seconds": 0}'), refuses], agent="desk")
    await lab.model.wait_for_requests(2, model=handle.id)
    await handle.execute_update("stop", {"reason": "enough"})
    goes.set()
    ran = await lab.look(handle)
    assert (ran.result["status"], ran.result["steps"], ran.result["reason"]) == ("stopped", 1, "enough")
    assert ran.calls[0]["result"]["text"] == "slept"


@pytest.mark.parametrize("runs", ["the model", "a tool"])
async def test_a_cancel_after_a_stop_ends_the_run_as_cancelled_at_once(lab: Lab, runs: str) -> None:
    """Whatever the stop was waiting for."""
    never = asyncio.Event()
    turns = [Turn(text="late", wait=never)] if runs == "the model" else [call("nap", '{"seconds": 60}'), DONE]
    handle = await lab.start(turns, agent="desk")
    await lab.model.wait_for_requests(1, model=handle.id)
    while runs == "a tool" and not RAN[handle.id]:
        await asyncio.sleep(0.02)
    await handle.execute_update("stop", {"reason": "enough"})
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    never.set()
    assert type(caught.value.cause).__name__ == "CancelledError"
    assert (await handle.query("progress"))["status"] == "cancelled"


async def test_a_stop_sent_with_the_start_is_accepted_and_recorded(lab: Lab) -> None:
    """It arrives before the agent is resolved, and is an event nevertheless."""
    starting = lab.starting([DONE], agent="desk")
    await lab.client.execute_update_with_start_workflow(
        "stop", {"reason": "a mistake"}, start_workflow_operation=starting
    )
    handle = await starting.workflow_handle()
    assert (await handle.result())["status"] == "stopped"
    found = (await handle.query("events"))["events"]
    assert [event["type"] for event in found] == ["run_started", "stopping", "run_ended"]
    assert found[1]["reason"] == "a mistake"


def payer(*tools: Tool) -> Agent:
    return Agent(name="payer", model="openai-chat:none", tools=tools)


@tool(needs_approval=True)
def pay(euros: int, ctx: ToolContext) -> str:
    """Pay."""
    return f"paid {euros}"


@tool(name="pay")
def pay_again(euros: int, reason: str) -> str:
    """Pay, as a later build has it: nobody is asked, and a reason is wanted."""
    return f"paid {euros} for {reason}"


@tool(needs_approval=True)
def note(text: str) -> str:
    """Take a note."""
    return "noted"


async def test_waiting_calls_survive_a_deploy_that_changes_or_removes_their_tools(lab: Lab) -> None:
    """If the tool changed or is gone, the model gets an error as for any mistake."""
    queue = f"deploy-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    calls = [("pay", '{"euros": 7}', "p"), ("note", '{"text": "x"}', "n"), ("pay", '{"euros": 8}', "q")]
    async with running_worker(lab.client, load_agents([payer(pay, note)], []), lab.telemetry, queue):
        handle = await at.start([Turn(calls=calls), DONE], agent="payer")
        await pending(handle, 3)
        await handle.execute_update("decide", {"call_id": "q", "decision": "approve"})
        while (await handle.query("steps"))["steps"][0]["tool_calls"][2]["result"] is None:
            await asyncio.sleep(0.02)
    async with running_worker(lab.client, load_agents([payer(pay_again)], []), lab.telemetry, queue):
        assert [wait["call_id"] for wait in await pending(handle, 2)] == ["p", "n"]
        for call_id in ("p", "n"):
            await handle.execute_update("decide", {"call_id": call_id, "decision": "approve"})
        ran = await at.look(handle)
    assert ran.result["status"] == "completed"
    kinds = [(made["result"]["error"] or {}).get("kind") for made in ran.calls]
    assert kinds == ["invalid_arguments", "unknown_tool", None]


async def test_an_edit_that_is_checked_while_the_run_is_cancelled_is_refused(lab: Lab) -> None:
    """Each accepted update has an answer before its run ends."""
    checking, refusal_was_sent = threading.Event(), threading.Event()  # guards run on an event loop of their own

    async def slow_guard(checked: ToolCall, _: ToolContext) -> str | None:
        if '"order": 8' in checked.arguments:
            checking.set()
            await asyncio.to_thread(refusal_was_sent.wait, 60)
        return None

    agent = Agent(name="slow", model="openai-chat:none", tools=[refund], guard=slow_guard)
    queue = f"slow-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load_agents([agent], []), lab.telemetry, queue):
        handle = await at.start([call("refund", REFUND), DONE], agent="slow")
        (asked,) = await pending(handle)
        edit = {"call_id": asked["call_id"], "decision": "approve", "arguments": {"order": 8, "amount": {"euros": 1}}}
        refused = asyncio.create_task(refusal_of(handle, "decide", edit))
        assert await asyncio.to_thread(checking.wait, 60)
        await handle.cancel()
        assert await refused == "The run has ended meanwhile, so nothing was changed."
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        refusal_was_sent.set()  # or the worker would wait for the guard until its time for shutting down ends
