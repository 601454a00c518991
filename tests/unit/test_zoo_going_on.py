"""Conversations that change hands at every server of the zoo: messages while calls wait, handoffs, forks on another worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan import Agent, tool
from mulligan.client.origins import fork_run
from mulligan.client.origins.fork_run import Fork
from mulligan.testing._activities import PAYLOADS
from mulligan.worker.loading import load_agents
from tests.promise.test_people import pending
from tests.support.lab import Ran
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.zoo.member import Member
from tests.support.zoo.members import MEMBERS
from tests.unit.test_zoo import BEFORE, OPTIONS, RAN, in_turn, nothing, photo, refusals, run

each_member = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    RAN.append(order)
    return f"order {order} is refunded"


desk = Agent(name="desk", description="It refunds.", tools=[refund, photo], handoffs=["reception"], **OPTIONS)
archive = Agent(name="archive", description="It files.", tools=[nothing], **OPTIONS)
sorting = {**OPTIONS, "instructions": "Sort."}
reception = Agent(name="reception", tools=[nothing, photo], handoffs=[desk, archive], **sorting)
AGENTS = [reception, desk, archive]


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents(AGENTS, [])) as at:
        yield at


@pytest.fixture(scope="module")
async def elsewhere(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    """Another worker, which has learned nothing of the servers."""
    async with memory_lab(model, load_agents(AGENTS, [])) as at:
        yield at


async def messages_while_a_call_waits(lab: MemoryLab, member: Member) -> Ran:
    """Two messages come between a call and its result, and one after an answer without calls would have been the last."""
    RAN.clear()
    turns = [
        Turn("I refund.", calls=[("refund", '{"order": 7}'), ("photo", "{}")]),
        Turn(calls=[("photo", "{}"), ("refund", '{"order": 8}')]),
        Turn("done"),
    ]
    lab.member = member
    try:
        handle = await lab.start(in_turn(*turns), agent="desk", messages=BEFORE)
    finally:
        lab.member = None
    for order in (7, 8):
        (asked,) = await pending(handle)
        await handle.execute_update("send_message", {"text": f"Hurry with {order}."})
        await handle.execute_update("send_message", {"text": "Please."})
        await handle.execute_update("decide", {"call_id": asked["call_id"], "decision": "approve"})
        if order == 7:
            await lab.model.wait_for_requests(2, model=handle.id)
            while [each["call_id"] for each in await pending(handle)] == [asked["call_id"]]:
                pass
    return await lab.look(handle)


@each_member
async def test_messages_wait_for_the_results_of_calls(lab: MemoryLab, member: Member) -> None:
    ran = await messages_while_a_call_waits(lab, member)
    assert ran.error is None
    assert (ran.result["output"], ran.result["recovered_failures"]) == ("done", 0)
    assert sorted(map(str, RAN)) == ["7", "8", "photo", "photo"]
    sent = json.dumps(ran.requests[-1].json["messages"])
    assert sent.count("Please.") == 2
    refusals(lab, ran.id)


@each_member
async def test_a_handoff_goes_on_with_the_same_conversation(lab: MemoryLab, member: Member) -> None:
    """There and back, with a call beside the handoff; a second handoff in the same step is told that it does not count."""
    RAN.clear()
    turns = [
        Turn("Well.", calls=[("photo", "{}"), ("transfer_to_desk", "{}"), ("transfer_to_archive", "{}")]),
        Turn(calls=[("photo", "{}")]),
        Turn("\n", calls=[("transfer_to_reception", "{}")]),
        Turn(calls=[("nothing", "{}")]),
        Turn("done"),
    ]
    ran = await run(lab, member, turns, "reception", messages=BEFORE)
    assert ran.error is None
    assert (ran.result["output"], RAN) == ("done", ["photo", "photo", "nothing"])
    assert [step["agent"] for step in ran.steps] == ["reception", "desk", "desk", "reception", "reception"]
    assert [call["result"]["error"]["kind"] for call in ran.calls if call["result"]["error"]] == ["denied"]
    refusals(lab, ran.id)


@each_member
async def test_a_fork_on_another_worker_sends_the_same_bytes(
    lab: MemoryLab, elsewhere: MemoryLab, member: Member
) -> None:
    """What was learned from refusals is in the run: the other worker is refused nothing."""
    RAN.clear()
    turns = [Turn("So.", calls=[("photo", "{}"), ("nothing", "{}")]), Turn(calls=[("photo", "{}")]), Turn("done")]
    ran = await run(lab, member, turns, "reception", messages=BEFORE)
    assert ran.error is None
    before = [request for request in lab.model.requests_of(ran.id) if not request.refusal]
    forked = await fork_input(ran, at=3)
    lab.model.script(ran.id, in_turn(Turn(calls=[("photo", "{}")]), Turn("Forked.")))
    again = await elsewhere.run_input(forked, f"{ran.id}-fork")
    assert (again.result["output"], RAN) == ("Forked.", ["photo", "nothing", "photo", "photo"])
    after = lab.model.requests_of(ran.id)[-2:]
    assert [request.refusal for request in after] == [None, None]
    assert after[0].body == before[-1].body


async def fork_input(ran: Ran, **options: Any) -> dict[str, Any]:
    """The input of a fork of a run in memory. Its tools run: no history is there whose results it could have."""
    client = SimpleNamespace(get_workflow_handle=lambda *_, **__: ran.handle)
    about = SimpleNamespace(id=ran.id, run_id="first", task_queue="agents", workflow_type="AgentWorkflow")
    forked = await fork_run._read_input(cast(Any, client), cast(Any, about), Fork(**options), "", None)
    assert forked.fork is not None
    origin = forked.fork.model_copy(update={"tools": "live"})
    (given,) = PAYLOADS.from_payloads(PAYLOADS.to_payloads([forked.with_fields(origin=origin)]))
    return cast(dict[str, Any], given)
