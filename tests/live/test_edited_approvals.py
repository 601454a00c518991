"""Edited arguments and the policy of their tool, on a real server: by `/api`, AG-UI and the command."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from mulligan.cli.app import app
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.promise.test_people import pending
from tests.support.ag_ui_client import AgUiThread, user
from tests.support.ai_sdk_client import Chat
from tests.support.edited_agents import UNKNOWN
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.shop_agents import RAN

TOKENS = "shop:token-1:,shop:token-2::finance"


@pytest.fixture(scope="module")
async def desk(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"edited-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load(["tests.support.edited_agents"]), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture
async def door(desk: Lab) -> AsyncIterator[Door]:
    async with http_server(desk.client, tokens=TOKENS, task_queue=desk.task_queue) as door:
        door.tokens = {"desk": "token-1", "chief": "token-2"}
        yield door


async def start(desk: Lab) -> Any:
    given = {"agent": "buyer", "prompt": "Buy.", "tenant": "shop"}
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    handle = await desk.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=desk.task_queue)
    await pending(handle)
    return handle


def edit(euros: int, **more: Any) -> dict[str, Any]:
    return {"call_id": "b1", "decision": "approve", "arguments": {"what": "lamps", "euros": euros}, **more}


async def test_an_edit_that_needs_a_role_waits_on_for_it(
    desk: Lab, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent again it is answered as the first time, also after the run has continued as new, and makes no rule."""
    handle = await start(desk)
    path = f"/api/runs/{handle.id}"

    async def decide(who: str, body: dict[str, Any], key: str | None = None) -> tuple[int, dict[str, Any]]:
        headers = door.by(who) | ({"Idempotency-Key": key} if key else {})
        response = await door.http.post(f"{path}/decisions", json=body, headers=headers)
        return response.status_code, response.json()

    (asked,) = (await door.http.get(f"{path}/pending", headers=door.by("desk"))).json()
    assert ("role" in asked, "edits" in asked) == (False, False)
    given = edit(500, reason="more lamps", remember="run")
    answer = await decide("desk", given, "key-1")
    assert answer == (200, {
        "accepted": True, "call_id": "b1", "role": "finance",
        "rule_refused": 'The call waits for somebody with the role "finance".',
    })  # fmt: skip
    (waits,) = (await door.http.get(f"{path}/pending", headers=door.by("desk"))).json()
    assert waits["arguments"] == {"what": "lamps", "euros": 500}
    assert (waits["role"], waits["edits"], waits["edited_by"]) == ("finance", 1, "shop")
    assert waits["since"] == asked["since"]
    assert await decide("desk", given, "key-1") == answer
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 1)
    await handle.execute_update("send_message", {"text": "Hurry."})
    while (await handle.describe()).run_id == handle.first_execution_run_id:
        await asyncio.sleep(0.05)
    monkeypatch.undo()
    assert await decide("desk", given, "key-1") == answer
    for body in ({"call_id": "b1", "decision": "approve"}, edit(5)):
        status, problem = await decide("desk", body)
        assert (status, problem["code"]) == (403, "role_needed")
    status, problem = await decide("chief", {"call_id": "b1", "decision": "approve", "edits": 0})
    assert (status, problem["code"]) == (409, "refused")
    assert "edited the arguments" in problem["detail"]
    assert RAN[handle.id] == []
    assert (await decide("chief", {"call_id": "b1", "decision": "approve", "by": "?", "edits": 1}))[0] == 200
    ran = await desk.look(handle)
    assert RAN[handle.id] == [("buy", {"what": "lamps", "euros": 500})]
    [made] = ran.calls
    assert made["arguments"] == {"what": "lamps", "euros": 500}
    assert made["decision"]["before"] == {"what": "lamps", "euros": 50}
    assert made["decision"]["role"] == "finance"
    assert (ran.result["recovered_failures"], ran.result["repairs"]) == (0, 0)
    assert await handle.query("rules") == []
    events = (await handle.query("events", args=[0, 1000]))["events"]
    told = [(each["type"], each.get("role"), each.get("edited")) for each in events if "call_id" in each]
    assert told[:3] == [("waiting", None, None), ("edited", "finance", None), ("decided", None, True)]
    written = [each.attributes for each in ran.spans_of("agent.decision")]
    assert [each["mulligan.decision.edited"] for each in written] == [True]


async def test_an_edit_that_needs_less_is_its_editors_approval_and_one_that_no_policy_knows_is_denied(
    desk: Lab, door: Door
) -> None:
    for who, euros, kind in (("desk", 5, None), ("desk", 60, None), ("chief", 500, None), ("desk", UNKNOWN, "denied")):
        handle = await start(desk)
        response = await door.http.post(f"/api/runs/{handle.id}/decisions", json=edit(euros), headers=door.by(who))
        assert response.status_code == 200
        why = "its policy failed: LookupError: 13 is in no list"
        assert response.json() == {"accepted": True, "call_id": "b1", **({"denied": why} if kind else {})}
        ran = await desk.look(handle)
        assert RAN[handle.id] == ([] if kind else [("buy", {"what": "lamps", "euros": euros})])
        result = ran.calls[0]["result"]
        assert (result["error"] or {}).get("kind") == kind
        if kind:
            assert result["text"] == f"`buy` was not run: {why}"
            assert ran.calls[0]["decision"]["by"] == "policy"
            assert ran.calls[0]["decision"]["edited_by"] == "shop"
            assert ran.result["recovered_failures"] == 1


async def test_the_stream_of_a_page_that_edits_ends_with_the_edited_call(desk: Lab, door: Door) -> None:
    """And so does the same request again: the page may not decide any more."""
    thread = AgUiThread(door, "buyer", **door.by("desk"))
    events = await thread.post(user("Buy lamps.", "m1"))
    [interrupt] = events[-1].outcome.interrupts
    payload = {"approved": True, "editedArgs": {"what": "lamps", "euros": 700}}
    resume = [{"interruptId": interrupt.id, "status": "resolved", "payload": payload}]
    for _ in range(2):
        events = await thread.post(resume=resume)
        [waits] = events[-1].outcome.interrupts
        assert waits.tool_call_id == "b1"
        assert waits.metadata["mulligan"]["arguments"] == {"what": "lamps", "euros": 700}


async def edit_elsewhere(door: Door, run_id: str) -> None:
    """Somebody edits the call, so that it waits for finance."""
    path = f"/api/runs/{run_id}/decisions"
    answer = (await door.http.post(path, json=edit(700), headers=door.by("desk"))).json()
    assert answer["role"] == "finance"


async def test_a_page_approves_only_what_it_has_shown(desk: Lab, door: Door) -> None:
    """Who may approve is refused as well, until the page has asked again, with the edited arguments."""
    door.http.headers.update(door.by("chief"))
    chat = Chat(door, "buyer")
    chunks = await chat.say("Buy lamps.")

    async def approve(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        *_, approval_id = [each["approvalId"] for each in chunks if each["type"] == "tool-approval-request"]
        part = {"type": "tool-buy", "toolCallId": "b1", "state": "approval-responded"}
        approval = {"id": approval_id, "approved": True}
        return await chat.post(
            {"id": chunks[0]["messageId"], "role": "assistant", "parts": [{**part, "approval": approval}]}
        )

    await edit_elsewhere(door, chunks[0]["messageId"])
    with pytest.raises(AssertionError, match="Somebody has edited the arguments"):
        await approve(chunks)
    asked = await chat.resume()
    assert [each for each in asked if each["type"] == "tool-input-available"][-1]["input"]["euros"] == 700
    assert "bought lamps for 700" in str(await approve(asked))


async def test_an_interrupt_is_resumed_only_with_the_arguments_that_it_has(desk: Lab, door: Door) -> None:
    thread, other = (AgUiThread(door, "buyer", **door.by(who)) for who in ("chief", "desk"))
    other.id = thread.id
    events = await thread.post(user("Buy lamps.", "m1"))

    async def approve(thread: AgUiThread, events: list[Any], **payload: Any) -> list[Any]:
        [interrupt] = events[-1].outcome.interrupts
        answer = {"interruptId": interrupt.id, "status": "resolved", "payload": {"approved": True, **payload}}
        return await thread.post(resume=[answer])

    await approve(other, events, editedArgs={"what": "lamps", "euros": 700})
    with pytest.raises(AssertionError, match="Somebody has edited the arguments"):
        await approve(thread, events)
    again = await thread.post()
    assert again[-1].outcome.interrupts[0].metadata["mulligan"]["arguments"]["euros"] == 700
    assert "bought lamps for 700" in str(await approve(thread, again))


async def test_an_edited_call_is_not_approved_by_the_request_of_a_response(desk: Lab, door: Door) -> None:
    """It has the model's arguments."""
    door.http.headers.update(door.by("chief"))
    response = (await door.http.post("/v1/responses", json={"model": "buyer", "input": "Buy lamps."})).json()
    [request] = [each for each in response["output"] if each["type"] == "mcp_approval_request"]
    await edit_elsewhere(door, response["id"])
    reply = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    body = {"model": "buyer", "previous_response_id": response["id"], "input": [reply]}
    answer = await door.http.post("/v1/responses", json=body)
    assert (answer.status_code, "Somebody has edited the arguments" in answer.text) == (400, True)


async def test_the_command_says_what_came_of_its_edit(desk: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reaches Temporal itself has every role."""
    config = desk.client.service_client.config
    monkeypatch.setenv("TEMPORAL_ADDRESS", config.target_host)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", desk.client.namespace)
    for euros, code, says in (
        (500, 0, "buy is approved."),
        (UNKNOWN, 1, "the call was denied: its policy failed: LookupError: 13 is in no list"),
    ):
        handle = await start(desk)
        words = ["approve", handle.id, "b1", "--arguments", f'{{"what": "lamps", "euros": {euros}}}', "--by", "Ada"]
        ran = await asyncio.to_thread(CliRunner().invoke, app, words, catch_exceptions=False)
        assert ran.exit_code == code, ran.output
        assert says in ran.output
        await handle.result()
        assert RAN[handle.id] == ([] if code else [("buy", {"what": "lamps", "euros": euros})])


async def test_the_command_shows_an_edited_call_and_who_may_decide(desk: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", desk.client.service_client.config.target_host)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", desk.client.namespace)
    handle = await start(desk)
    await handle.execute_update("decide", edit(500, roles=[], by="Bob"))
    words = ["approve", handle.id, "b1", "--by", "Ada"]
    ran = await asyncio.to_thread(CliRunner().invoke, app, words, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    for shown in ('"euros": 500', "who may decide: role finance", "edited by: Bob"):
        assert shown in ran.output
    made = (await desk.look(handle)).calls[0]
    assert (made["decision"]["by"], made["decision"]["edited_by"]) == ("Ada", "Bob")
