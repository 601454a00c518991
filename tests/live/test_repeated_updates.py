"""Updates that are sent again: each has its effect once, and its sender reads the first answer."""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from temporalio.client import WorkflowHandle

from mulligan import Agent, ToolContext, UpdateRefusedError, connect, tool
from mulligan.client import send_update as sending
from mulligan.client.send_update import RunEndedError, UpdateTimeoutError, UpdateTooLargeError, send_update
from mulligan.devserver import DevServer
from mulligan.serve.caller import Caller
from mulligan.serve.idempotency import read_update_id
from mulligan.serve.problems import problem_of
from mulligan.tools import ask_person
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from tests.live.test_continue_while_waiting import replay_chain, runs_of
from tests.promise.test_people import REFUND, pending
from tests.support.http_server import http_server
from tests.support.lab import DONE, Lab, call
from tests.support.lost_answers import with_faults
from tests.support.openai_turn import Turn
from tests.support.people_agents import refund
from tests.support.pushed_back_updates import UpdateFaults
from tests.support.shop_agents import RAN

DECISIONS = 30
Outcome = tuple[str, Any]


@tool(deferred=True)
async def ship(order: int, ctx: ToolContext) -> str:
    """Ship an order; another system says when it is done."""
    RAN[ctx.workflow_id].append(("ship", {"order": order}))
    return "started"


clerk = Agent(name="clerk", model="openai-chat:nobody", tools=[refund, ask_person, ship], max_steps=200)


SEEDS = int(os.environ.get("UPDATE_SEEDS", "3"))
"""Random conversations; 30 for the longer form."""


@pytest.fixture(scope="module")
async def served(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"desk-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load_agents([clerk], []), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture
def desk(served: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A worker on a server that suggests to continue as new soon. Senders have the time that a slow machine needs, and ask
    again soon.
    """
    monkeypatch.setattr(sending, "UPDATE_TIMEOUT", 300)
    monkeypatch.setattr(sending, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(sending, "_LONGEST_PAUSE", 0.2)
    return served


def refund_of(order: int, euros: float = 12.5) -> str:
    return json.dumps({"order": order, "amount": {"euros": euros}})


async def outcome(handle: Any, update: str, fields: dict[str, Any], update_id: str) -> Outcome:
    """The answer, or the refusal, that the sender of an update gets."""
    try:
        return "accepted", await send_update(handle._client, handle.id, update, fields, update_id=update_id)
    except UpdateRefusedError as error:
        return "refused", (error.message, error.ended_by)
    except RunEndedError:
        return "ended", None


async def test_decisions_at_once_are_accepted_while_the_run_continues_as_new(desk: Lab) -> None:
    """Also when each is sent once more, while a last call keeps the run open."""
    calls = [("refund", refund_of(number + 100), f"r{number}") for number in range(DECISIONS)]
    handle = await desk.start([Turn(calls=[*calls, ("refund", REFUND, "gate")]), DONE], agent="clerk")
    await pending(handle, DECISIONS + 1)
    decisions = [{"call_id": f"r{number}", "decision": "approve", "by": "Ada"} for number in range(DECISIONS)]
    answers = await asyncio.gather(*(outcome(handle, "decide", each, each["call_id"]) for each in decisions))
    assert answers == [("accepted", {"accepted": True, "call_id": each["call_id"]}) for each in decisions]
    assert await runs_of(desk, handle) > 1
    again = await asyncio.gather(*(outcome(handle, "decide", each, each["call_id"]) for each in decisions))
    assert again == answers
    await send_update(desk.client, handle.id, "decide", {"call_id": "gate", "decision": "deny"})
    ran = await desk.look(handle)
    assert ran.result["status"] == "completed"
    assert sorted(arguments["order"] for _, arguments in RAN[handle.id]) == list(range(100, 100 + DECISIONS))
    await replay_chain(desk, handle)


class Conversation:
    """A random conversation: calls that wait, and what people send about them, each update several times."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.calls: list[tuple[str, str, str]] = []
        for number in range(self.dice.randrange(4, 16)):
            self._add_call(f"c{number}", number + 100)
        for number in range(self.dice.randrange(25)):
            text = f"message {number}"
            with_id = {"id": text} if self.dice.random() < 0.5 else {}
            self.sent.append(("send_message", {"text": text, **with_id}))
        self.dice.shuffle(self.sent)

    def _add_call(self, call_id: str, order: int) -> None:
        kind = self.dice.choice(["refund", "refund", "ask_person", "ship"])
        arguments = {
            "refund": refund_of(order),
            "ask_person": '{"question": "Which?"}',
            "ship": f'{{"order": {order}}}',
        }
        self.calls.append((kind, arguments[kind], call_id))
        if kind == "refund":
            for by in ("Ada", "Bea")[: self.dice.choice((1, 2))]:  # the second of two is refused
                decision = self.dice.choice(("approve", "deny"))
                edit = {"arguments": json.loads(refund_of(order, 5))} if decision == "approve" else {}
                edited = edit if self.dice.random() < 0.3 else {}
                self.sent.append(("decide", {"call_id": call_id, "decision": decision, "by": by, **edited}))
            if self.dice.random() < 0.3:
                invalid = {"arguments": json.loads(refund_of(order, 100.5))}
                self.sent.append(("decide", {"call_id": call_id, "decision": "approve", "by": "Cy", **invalid}))
        elif kind == "ask_person":
            self.sent.append(("answer", {"call_id": call_id, "text": f"answer to {call_id}", "by": "Ada"}))
        else:
            self.sent.append(("complete", {"call_id": call_id, "result": f"shipped {call_id}"}))

    async def send(self, handle: Any, update: str, fields: dict[str, Any]) -> Outcome:
        """Send one of them, and again at any time; returns what its sender reads, each time."""
        update_id = uuid.uuid4().hex
        await asyncio.sleep(self.dice.random() / 2)
        first = await outcome(handle, update, fields, update_id)
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(self.dice.random() * self.dice.choice((0, 0.3, 0.6)))
            assert await outcome(handle, update, fields, update_id) == first
        return first

    async def check(self, ran: Any, outcomes: list[Outcome]) -> None:
        """Each accepted update, and no other, has had its effect once."""
        accepted = [each for each, (how, _) in zip(self.sent, outcomes, strict=True) if how == "accepted"]
        results = {each["id"]: each for each in ran.calls}
        decided = Counter(fields["call_id"] for update, fields in accepted if update != "send_message")
        assert decided == dict.fromkeys((call_id for *_, call_id in self.calls), 1)
        effects = Counter(str(each) for each in RAN[ran.id])
        assert set(effects.values()) <= {1}
        for update, fields in accepted:
            if update == "send_message":
                continue
            result = results[fields["call_id"]]
            if update == "decide":
                decision = result["decision"]
                assert (decision["decision"], decision["by"]) == (fields["decision"], fields["by"])
                assert ("edited" in decision) == ("arguments" in fields)
            else:
                assert result["result"]["text"] == fields.get("text", fields.get("result"))
        approved = [fields for update, fields in accepted if update == "decide" and fields["decision"] == "approve"]
        assert sum(name == "refund" for name, _ in RAN[ran.id]) == len(approved)
        messages = (await ran.handle.query("messages", args=[0, 1000]))["messages"]
        read = Counter(message["text"] for message in messages if message["role"] == "user")
        assert read == dict.fromkeys(["Go.", *(f["text"] for update, f in accepted if update == "send_message")], 1)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_update_of_a_random_conversation_is_carried_out_once_and_answered_as_the_first_time(
    desk: Lab, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Updates of all kinds, pushed back, without their answers, twice at once and later, while the run continues as new."""
    talk = Conversation(seed)
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", talk.dice.randrange(20, 60))
    faults = UpdateFaults(talk.dice, share=0.4, first=["lost", "twice", "busy"])
    gate = ("refund", REFUND, "gate")
    handle = await desk.start([Turn(calls=[*talk.calls, gate]), DONE, DONE], agent="clerk")
    await pending(handle, 1 + sum(name != "ship" for name, *_ in talk.calls))
    while len(RAN[handle.id]) < sum(name == "ship" for name, *_ in talk.calls):
        await asyncio.sleep(0.02)
    faulty = with_faults(desk.client, faults).get_workflow_handle(handle.id)
    outcomes = await asyncio.gather(*(talk.send(faulty, *each) for each in talk.sent))
    is_stopped = talk.dice.random() < 0.3
    last = (
        ("stop", {"reason": "enough"}) if is_stopped else ("decide", {"call_id": "gate", "decision": "deny", "by": "A"})
    )
    assert (await talk.send(faulty, *last))[0] == "accepted"
    ran = await desk.look(handle)
    assert ran.result["status"] == ("stopped" if is_stopped else "completed")
    ran.calls.pop()
    await talk.check(ran, outcomes)
    await replay_chain(desk, handle)


async def test_an_update_that_is_pushed_back_for_too_long_says_that_it_can_be_sent_again(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await desk.start([call("refund", REFUND, "r"), DONE], agent="clerk")
    await pending(handle)
    faults = UpdateFaults(random.Random(1), share=1, kinds=("busy",))
    busy = with_faults(desk.client, faults)
    deny = {"call_id": "r", "decision": "deny"}
    waiting = asyncio.create_task(send_update(busy, handle.id, "decide", deny))
    while faults.counts["busy"] < 3:
        await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    monkeypatch.setattr(sending, "UPDATE_TIMEOUT", 0.5)
    with pytest.raises(UpdateTimeoutError, match="in-flight") as caught:
        await send_update(busy, handle.id, "decide", deny)
    problem = problem_of(caught.value)
    assert (problem.status, problem.code, problem.headers["Retry-After"]) == (503, "unavailable", "2")
    assert len(await handle.query("pending")) == 1
    await handle.terminate()


async def test_an_update_that_a_run_cannot_take_is_sent_once(desk: Lab) -> None:
    """A message of 5 MB is not sent at all; the run of another id does not exist."""
    handle = await desk.start([call("refund", REFUND, "r"), DONE], agent="clerk")
    await pending(handle)
    counted = UpdateFaults(random.Random(1), share=0)
    counting = with_faults(desk.client, counted)
    with pytest.raises(UpdateTooLargeError):
        await send_update(counting, handle.id, "send_message", {"text": "x" * 5_000_000})
    with pytest.raises(RunEndedError):
        await send_update(counting, "no-such-run", "stop", {})
    assert counted.counts["sent"] == 1
    await handle.terminate()


DENY = {"call_id": "r", "decision": "deny"}
DENIED = ("accepted", {"accepted": True, "call_id": "r"})


async def denied_before_continuing(desk: Lab, monkeypatch: pytest.MonkeyPatch, runs: int) -> WorkflowHandle[Any, Any]:
    """A run whose call `r` was denied by the update `first`. It has continued as new since, up to so many workflow runs;
    the call `s` still waits.
    """
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    turns = [Turn(calls=[("refund", REFUND, "r"), ("refund", REFUND, "s")]), DONE]
    handle: WorkflowHandle[Any, Any] = await desk.start(turns, agent="clerk")
    await pending(handle, 2)
    assert await outcome(handle, "decide", DENY, "first") == DENIED
    number = 0
    while await runs_of(desk, handle) < runs:
        await send_update(desk.client, handle.id, "send_message", {"text": f"message {number}"})
        number += 1
    return handle


async def test_a_run_that_has_ended_answers_what_it_was_sent_in_the_run_before_its_last_one(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await denied_before_continuing(desk, monkeypatch, 2)
    assert (await outcome(handle, "decide", {**DENY, "call_id": "s"}, "last"))[0] == "accepted"
    await handle.result()
    assert await runs_of(desk, handle) == 2
    assert await outcome(handle, "decide", DENY, "first") == DENIED
    assert (await outcome(handle, "decide", {**DENY, "call_id": "s"}, "last"))[0] == "accepted"
    assert await outcome(handle, "decide", DENY, "never sent") == ("ended", None)


async def test_a_run_that_has_ended_answers_what_it_was_sent_several_continuations_before(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is on the workflow runs that are searched."""
    handle = await denied_before_continuing(desk, monkeypatch, 3)
    await send_update(desk.client, handle.id, "decide", {**DENY, "call_id": "s"})
    await handle.result()
    assert await outcome(handle, "decide", DENY, "first") == DENIED
    assert await outcome(handle, "decide", DENY, "never sent") == ("ended", None)
    monkeypatch.setattr(sending, "MOST_RUNS_BACK", 1)
    assert await outcome(handle, "decide", DENY, "first") == ("ended", None)


def test_answers_that_are_loaded_keep_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of them are left out."""
    monkeypatch.setattr(limits, "UPDATE_ANSWERS_KEPT", 3)
    answered = AnsweredUpdates(lambda: asyncio.sleep(0))
    answered.load({"b": {}, "c": {}, "d": {}})
    answered.load({"a": {}})
    assert list(answered.dump()) == ["b", "c", "d"]


def test_one_key_of_two_tenants_or_customers_makes_two_updates() -> None:
    headers = [(b"idempotency-key", b"k")]
    request = Request(
        {"type": "http", "method": "POST", "path": "/api/runs/r/stop", "query_string": b"", "headers": headers}
    )
    callers = [None, *(Caller(name, trusted=True) for name in ("acme", "acme", "other"))]
    callers += [Caller("ada", tenant="acme"), Caller("bob", tenant="acme")]
    none, acme, again, other, ada, bob = (read_update_id(request, caller, {}) for caller in callers)
    assert acme == again
    assert len({none, acme, other, ada, bob}) == 5


async def test_a_request_with_a_key_is_one_update(desk: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each kind of update over HTTP; also after the run has continued as new, and after its end."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    calls = [("refund", REFUND, "r"), ("ask_person", '{"question": "Which?"}', "q"), ("refund", REFUND, "s")]
    handle = await desk.start([Turn(calls=calls), DONE], agent="clerk")
    await pending(handle, 3)
    requests: list[tuple[str, dict[str, Any]]] = [
        ("messages", {"text": "Hurry."}),
        ("decisions", {"call_id": "r", "decision": "approve"}),
        ("answers", {"call_id": "q", "text": "Both."}),
    ]
    async with http_server(desk.client) as door:

        async def post(kind: str, fields: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
            headers = {"Idempotency-Key": key}
            answer = await door.http.post(f"/api/runs/{handle.id}/{kind}", json=fields, headers=headers)
            return answer.status_code, answer.json()

        answers = [await post(kind, fields, "k") for kind, fields in requests]
        assert [status for status, _ in answers] == [200, 200, 200]
        assert (await post("messages", {"text": "Hurry!"}, "k"))[1]["id"] != answers[0][1]["id"]
        assert (await post("decisions", requests[1][1], "l"))[0] == 409
        number = 0
        while await runs_of(desk, handle) == 1:
            await send_update(desk.client, handle.id, "send_message", {"text": f"message {number}"})
            number += 1
        assert [await post(kind, fields, "k") for kind, fields in requests] == answers
        stopped = await post("stop", {"reason": "enough"}, "k")
        assert stopped == (200, {"accepted": True})
        ran = await desk.look(handle)
        assert await post("stop", {"reason": "enough"}, "k") == stopped
        assert (await post("stop", {"reason": "enough"}, "l"))[1]["code"] == "run_ended"
        assert (await post("stop", {}, "x" * 1_001))[0] == 422
    assert [name for name, _ in RAN[handle.id]] == ["refund"]
    messages = (await handle.query("messages", args=[0, 1000]))["messages"]
    assert sum(message["text"] == "Hurry." for message in messages) == 1
    assert ran.result["status"] == "stopped"


@pytest.mark.parametrize("bound", ["UPDATE_ANSWERS_KEPT", "UPDATE_ANSWERS_BYTES"])
async def test_a_run_carries_the_newest_answers_only(desk: Lab, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    monkeypatch.setattr(limits, bound, {"UPDATE_ANSWERS_KEPT": 5, "UPDATE_ANSWERS_BYTES": 500}[bound])
    handle = await desk.start([Turn(calls=[("refund", REFUND, "r"), ("refund", REFUND, "s")]), DONE], agent="clerk")
    await pending(handle, 2)
    deny = {"call_id": "r", "decision": "deny"}
    denied = await outcome(handle, "decide", deny, "old")
    number = 0
    while await runs_of(desk, handle) == 1:
        await send_update(desk.client, handle.id, "send_message", {"text": f"message {number}"})
        number += 1
    refused, (text, _) = await outcome(handle, "decide", deny, "old")
    assert (denied[0], refused) == ("accepted", "refused")
    assert '"r" no longer waits: it was denied' in text
    await handle.terminate()
