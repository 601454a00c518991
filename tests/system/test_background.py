"""Background responses on a real server: how they are created, waited for, and ended at the provider."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.worker import Replayer

from mulligan import ModelUnavailableError, data_converter, error_of
from mulligan.activities.background import read_response
from mulligan.client.follow_events import follow
from mulligan.client.origins.resume_run import resume_run
from mulligan.client.read_run import size_of_chain
from mulligan.context_view.model_context import read_model_context
from mulligan.devserver import DevServer, temporal_server
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.live.test_resets import points_of, reset
from tests.support import background_responses
from tests.support.background_responses import StoredResponse, signed_webhook
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.openai_turn import Failure, Turn
from tests.support.ports import free_ports
from tests.support.processes import descendants_with
from tests.support.temporal import connect_to
from tests.support.worker_process import worker_process

PAGE = Path(__file__).parents[2] / "docs/background.md"
MODULE = "tests.support.background_agents"
COUNT = Turn(calls=[("count_words", '{"text": "a b c"}', None)])
SECRET = f"whsec_{base64.b64encode(b'a secret of the webhook').decode()}"
Handle = WorkflowHandle[Any, Any]


STORY = "It was a dark and stormy night, once upon a time."
"""Its pieces have 7 characters, and are the events from number 5 on."""


LONG_ID = f"resp_{'x' * 100_000}"


@pytest.fixture
async def at(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A worker with the agents of this file, whose polls are frequent, and live text too."""
    monkeypatch.setenv("MULLIGAN_LIVE_TEXT_SECONDS", "0.1")
    monkeypatch.setattr(limits, "POLL_FIRST", 0.2)
    monkeypatch.setattr(limits, "POLL_LONGEST", 0.5)
    queue = f"background-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load([MODULE]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def start(at: Lab, turns: Any, agent: str = "thinker", **given: Any) -> Handle:
    handle: Handle = await at.start(turns, agent=agent, api="openai", **given)
    return handle


async def created(at: Lab, handle: Handle, count: int = 1) -> list[StoredResponse]:
    """The run's responses, as soon as there are `count` of them whose ids the run knows."""
    while True:
        stored = at.model.background.of(handle.id)
        waits = (await handle.query("progress"))["waiting_for"] or {"detail": ""}
        if len(stored) >= count and stored[count - 1].id in waits["detail"]:
            return stored
        await asyncio.sleep(0.05)


async def events_of(handle: Handle) -> list[Any]:
    return [event async for event in handle.fetch_history_events()]


async def test_each_step_is_one_response_that_is_stored_only_until_the_run_has_it(at: Lab) -> None:
    """Its id is in history before anything waits, and while it is waited for, no activity is open."""
    released = asyncio.Event()
    turns = [COUNT, Turn(text="Three.", wait=released)]
    handle = await start(at, turns)
    first, second = await created(at, handle, 2)
    waits = (await handle.query("progress"))["waiting_for"]
    assert waits["kind"] == "model"
    assert f"background response {second.id}" in waits["detail"]
    described = await handle.describe()
    while described.raw_description.pending_activities:  # a poll is running
        described = await handle.describe()
    released.set()
    ran = await at.look(handle)
    assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("completed", "Three.", 2)
    assert [each.is_deleted for each in (first, second)] == [True, True]
    assert not second.is_cancelled
    creations = [request.json for request in ran.requests if request.json]
    assert [(body["background"], body["store"]) for body in creations] == [(True, True), (True, True)]
    assert [call["result"]["text"] for call in ran.calls] == ["3"]
    seen = [await read_model_context(at.client, ran.id, step) for step in (1, 2)]
    assert [[message.role for message in each.messages] for each in seen] == [["user"], ["user", "assistant", "tool"]]
    chats = ran.spans_of(f"chat {handle.id}")
    assert [span.attributes["gen_ai.response.id"] for span in chats] == [first.id, second.id]
    assert all(span.attributes["mulligan.attempt"] == 1 for span in chats)
    history = await events_of(handle)
    text = str(history[-40:])
    assert second.id in text
    kinds = [event.event_type for event in history]
    start_of_wait = kinds.index(EventType.EVENT_TYPE_TIMER_STARTED)
    assert first.id.encode() in b"".join(
        payload.data
        for event in history[:start_of_wait]
        for payload in event.activity_task_completed_event_attributes.result.payloads
    )


ENDINGS: dict[str, tuple[str, Turn, int, str]] = {
    # agent, the model's turn, the responses that are created, and the run's status or error
    "it fails once, so another one is created": (
        "thinker",
        Turn("Done.", background_ends=["server_error"]),
        2,
        "completed",
    ),
    "it vanishes, so another one is created": ("thinker", Turn("Done.", background_ends=["expired"]), 2, "completed"),
    "somebody cancels it": ("thinker", Turn("Done.", background_ends=["cancelled"]), 2, "completed"),
    "it would fail again": ("thinker", Turn(background_ends=["invalid_prompt"]), 1, "ModelRequestError"),
    "the attempts are used up": ("impatient", Turn(background_ends=["server_error"]), 1, "ModelUnavailableError"),
    "the endpoint limits the creation": ("thinker", Turn("Done.", fail_first=[Failure(429)]), 1, "completed"),
    "the endpoint refuses it": ("thinker", Turn(failure=Failure(400)), 0, "ModelRequestError"),
    "it is cut off": ("thinker", Turn("Do", finish_reason="length"), 1, "truncated"),
    "it is filtered": ("thinker", Turn("Do", finish_reason="content_filter"), 1, "refused"),
    "it takes too long": ("hurried", Turn("Late.", delay=3_600), 2, "ModelUnavailableError"),
    "its output has a schema": ("reporter", Turn('{"words": 3}'), 1, "completed"),
}


@pytest.mark.parametrize("case", ENDINGS)
async def test_every_end_of_a_response_has_the_outcome_of_an_ordinary_call(
    case: str, at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is left at the provider, each attempt has one span, and none has another status than its attempt."""
    monkeypatch.setattr(read_response, "VISIBLE_AFTER", 0.0)
    agent, turn, count, outcome = ENDINGS[case]
    ran = await at.look(await start(at, [turn], agent))
    stored = at.model.background.of(ran.id)
    assert (ran.error.type if ran.error else ran.result["status"]) == outcome
    assert len(stored) == count
    assert all(each.is_deleted or each.ends == "expired" for each in stored)
    if case == "it takes too long":
        assert all(each.is_cancelled for each in stored)
    chats = ran.spans_of(f"chat {ran.id}")
    answered = [span for span in chats if "error.type" not in span.attributes]
    assert len(answered) == (0 if ran.error else 1)
    attempts = sorted(span.attributes["mulligan.attempt"] for span in chats)
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(chats) == max(count, len(turn.fail_first) + 1)


async def stopped(at: Lab, handle: Handle) -> None:
    await handle.execute_update("stop", {"reason": "lunch"})


async def cancelled(at: Lab, handle: Handle) -> None:
    await handle.cancel()


async def cancelled_during_a_poll(at: Lab, handle: Handle) -> None:
    at.model.background.hold_reads = asyncio.Event()
    while not (await handle.describe()).raw_description.pending_activities:
        await asyncio.sleep(0.02)
    await handle.cancel()


@pytest.mark.parametrize(
    ("end", "status"),
    [(stopped, "stopped"), (cancelled, "CancelledError"), (cancelled_during_a_poll, "CancelledError")],
)
async def test_a_run_that_ends_early_cancels_and_deletes_its_response(
    end: Callable[[Lab, Handle], Awaitable[None]], status: str, at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped run waits for the grace time of every model call first. A cancelled one does not wait for the provider."""
    monkeypatch.setattr(limits, "STOP_GRACE", limits.STOP_GRACE / 30)
    handle = await start(at, [Turn("Never.", wait=asyncio.Event())])
    [stored] = await created(at, handle)
    if status != "stopped":
        at.model.background.hold_ends = asyncio.Event()
    await end(at, handle)
    try:
        reached = (await handle.result())["status"]
    except WorkflowFailureError as failure:
        reached = type(failure.cause).__name__
    at.model.background.hold_reads = None
    assert reached == status
    if at.model.background.hold_ends is not None:
        at.model.background.hold_ends.set()
    while not stored.is_deleted:
        await asyncio.sleep(0.02)
    assert (stored.is_cancelled, stored.is_deleted) == (True, True)
    at.telemetry.flush()
    spans = [span for span in at.otlp.spans() if span.name == f"chat {handle.id}"]
    assert [span.attributes["error.type"] for span in spans] == ["CancelledError"]
    resumed = at.model.background.of(handle.id)
    assert len(resumed) == 1
    at.model.script(handle.id, [Turn("Resumed.")])
    new = await at.look(await resume_run(at.client, handle.id, task_queue=at.task_queue))
    assert (new.result["output"], len(at.model.background.of(handle.id))) == ("Resumed.", 2)


@pytest.fixture
async def door(at: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    """A server for webhooks, which asks for tokens for everything else; and a worker that polls once in an hour."""
    monkeypatch.setattr(limits, "POLL_FIRST", 3_600.0)
    monkeypatch.setenv("OPENAI_WEBHOOK_SECRET", SECRET)
    async with http_server(at.client, tokens="ops:secret-1:*") as door:
        yield door


async def test_a_webhook_ends_the_wait_at_once(at: Lab, door: Door) -> None:
    """Only a signed and recent one; one about another response, or about none, changes nothing."""
    released = asyncio.Event()
    handle = await start(at, [Turn("Soon.", wait=released)])
    [stored] = await created(at, handle)
    released.set()

    async def post(body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        answer = await door.http.post("/api/webhooks/openai", content=body, headers=headers)
        return answer.status_code, answer.json().get("code")

    body, headers = signed_webhook(SECRET, stored.id)
    assert await post(body, {**headers, "webhook-signature": "v1,AAAA"}) == (400, "invalid_signature")
    assert await post(body.replace(b"completed", b"failed"), headers) == (400, "invalid_signature")
    assert await post(body, {"content-type": "application/json"}) == (400, "invalid_signature")
    assert await post(*signed_webhook(SECRET, stored.id, at=time.time() - 3_600)) == (400, "invalid_signature")
    assert await post(*signed_webhook(SECRET, "resp_unknown")) == (200, None)
    assert await post(*signed_webhook(SECRET, "batch_1", "batch.completed")) == (200, None)
    assert stored.reads == 0
    assert await post(body, headers) == (200, None)
    ran = await at.look(handle)
    assert (ran.result["output"], stored.is_deleted) == ("Soon.", True)
    assert await post(body, headers) == (200, None)  # it comes twice: the response is not stored any more


async def test_a_webhook_that_comes_too_early_is_remembered_or_read_again(at: Lab, door: Door) -> None:
    """Before the run knows the id; and before the response has ended, after which the next poll finds it."""
    at.model.background.hold = asyncio.Event()
    try:
        handle = await start(at, [Turn("At once.")])
        while not (stored := at.model.background.of(handle.id)):
            await asyncio.sleep(0.02)
        body, headers = signed_webhook(SECRET, stored[0].id)
        answer = await door.http.post("/api/webhooks/openai", content=body, headers=headers)
        assert answer.status_code == 200
    finally:
        at.model.background.hold.set()
        at.model.background.hold = None
    assert (await at.look(handle)).result["output"] == "At once."


async def test_a_token_of_a_response_completes_no_deferred_call(at: Lab, door: Door) -> None:
    """Whoever can read the metadata at the provider learns nothing, and can do nothing with it."""
    handle = await start(at, [Turn("Never.", wait=asyncio.Event())])
    [stored] = await created(at, handle)
    token = stored.request["metadata"]["mulligan"]
    assert handle.id not in token
    answer = await door.http.post(f"/api/callbacks/{token}", json={"result": 1})
    assert (answer.status_code, answer.json()["code"]) == (404, "callback_not_found")
    await handle.cancel()


async def test_a_long_wait_continues_as_new_with_the_same_response(at: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that come meanwhile follow the answer; each workflow run replays."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    released = asyncio.Event()
    handle = await start(at, [COUNT, Turn("Three.", wait=released), Turn("Bye.")])
    await created(at, handle, 2)
    await handle.execute_update("send_message", {"text": "And then?", "id": "m"})
    while (await size_of_chain(at.client, handle.id)).runs < 3:
        await asyncio.sleep(0.1)
    released.set()
    ran = await at.look(at.client.get_workflow_handle(handle.id))
    assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("completed", "Bye.", 3)
    assert len(at.model.background.of(handle.id)) == 3
    messages = (await ran.handle.query("messages"))["messages"]
    assert [message["text"] for message in messages] == ["Go.", "", "3", "Three.", "And then?", "Bye."]
    events = (await ran.handle.query("events"))["events"]
    assert [event["step"] for event in events if event["type"] == "step_started"] == [1, 2, 3]
    replayer = Replayer(workflows=[AgentWorkflow], data_converter=data_converter)
    async for run in at.client.list_workflows(f'WorkflowId = "{handle.id}"'):
        one = at.client.get_workflow_handle(handle.id, run_id=run.run_id)
        await replayer.replay_workflow(await one.fetch_history())


async def test_a_run_that_is_reset_reads_the_response_that_it_has_or_creates_another_one(
    at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reset into the wait: the same response. Reset to before its creation, after it was deleted: another one."""
    monkeypatch.setattr(read_response, "VISIBLE_AFTER", 0.0)
    released = asyncio.Event()
    handle = await start(at, [Turn("Once.", wait=released)])
    await created(at, handle)
    again = await reset(at, handle, (await points_of(handle))[-1])
    await created(at, again)
    released.set()
    assert (await at.look(again)).result["output"] == "Once."
    assert len(at.model.background.of(handle.id)) == 1
    first = await reset(at, again, (await points_of(again))[0])
    assert (await at.look(first)).result["output"] == "Once."
    assert len(at.model.background.of(handle.id)) == 2


class Watcher:
    """Somebody who follows a run. `events`: what has come."""

    def __init__(self, handle: Handle, client: Any) -> None:
        self.events: list[Any] = []
        self._task = asyncio.create_task(self._follow(client, handle.id))

    async def _follow(self, client: Any, run_id: str) -> None:
        async for event in follow(client, run_id, every=0.1):
            self.events.append(event)

    @property
    def text(self) -> str:
        """The text so far, of the newest attempt: each piece has come once, after the one before it."""
        text = ""
        for event in self.events:
            if event.type == "text_delta":
                assert event.start == len(text), self.events
                text += event.text
            elif event.type == "text_void":
                text = ""
        return text

    async def until(self, length: int) -> None:
        """Wait until that much text has come."""
        while len(self.text) < length:
            assert not self._task.done(), self.events
            await asyncio.sleep(0.05)

    async def end(self) -> list[Any]:
        """All events, when the run has ended."""
        await self._task
        return self.events


async def test_text_is_shown_while_the_model_writes_in_order_and_once(at: Lab) -> None:
    """While it pauses, no poll reads; the next one continues after the event that was read last."""
    pause, end = asyncio.Event(), asyncio.Event()
    handle = await start(at, [Turn(STORY, gates={8: pause, 10: end})])
    [stored] = await created(at, handle)
    watcher = Watcher(handle, at.client)
    await watcher.until(21)
    polls = stored.reads
    while stored.reads < polls + 2 or (await handle.describe()).raw_description.pending_activities:
        await asyncio.sleep(0.05)
    pause.set()
    await watcher.until(35)
    end.set()
    ran, events = await at.look(handle), await watcher.end()
    assert STORY.startswith(watcher.text)
    assert [event.text for event in events if event.type == "answered"] == [STORY] == [ran.result["output"]]
    assert {event.attempt for event in events if event.type == "text_delta"} == {1}
    assert (stored.streams[0], stored.streams == sorted(stored.streams)) == (0, True)
    assert 7 in stored.streams
    assert stored.streams.count(0) < len(stored.streams)
    assert len(ran.spans_of(f"chat {handle.id}")) == 1


async def test_the_text_of_a_response_that_fails_is_void(at: Lab) -> None:
    failed = asyncio.Event()
    handle = await start(at, [Turn(STORY, gates={8: failed}, background_ends=["server_error"])])
    watcher = Watcher(handle, at.client)
    await watcher.until(21)
    failed.set()
    ran, events = await at.look(handle), await watcher.end()
    kinds = [event.type for event in events if event.type in ("text_delta", "text_void", "answered")]
    assert kinds[0] == "text_delta"
    assert (kinds.count("text_void"), kinds.count("answered"), kinds[-1]) == (1, 1, "answered")
    assert {event.attempt for event in events[: [event.type for event in events].index("text_void")] if event.type == "text_delta"} == {1}  # fmt: skip
    assert ran.result["output"] == STORY


@pytest.mark.parametrize("refused", ["the creation", "a later stream"])
async def test_a_response_that_the_endpoint_does_not_stream_is_polled(refused: str, at: Lab) -> None:
    """It is asked to stream once, and no more."""
    released = asyncio.Event()
    is_later = refused == "a later stream"
    turn = Turn("Done.", wait=released, whole_only=not is_later)
    background = at.model.background
    background.is_too_old = lambda stored: is_later and stored.turn is turn
    try:
        handle = await start(at, [turn])
        [stored] = await created(at, handle)
        while stored.reads < 3:
            await asyncio.sleep(0.05)
    finally:
        background.is_too_old = lambda _: False
    released.set()
    assert (await handle.result())["output"] == "Done."
    creations = [bool(request.json.get("stream")) for request in at.model.requests_of(handle.id) if request.json]
    assert creations == ([True] if is_later else [True, False])
    refusals = [each for each in at.model.requests if each.refusal and each.path.endswith(stored.id)]
    assert (len(refusals), stored.streams) == (1 if is_later else 0, [])
    assert len(background.of(handle.id)) == 1


async def test_text_continues_after_the_last_event_when_the_worker_is_killed(lab: Lab, tmp_path: Any) -> None:
    """Another worker reads from there, and nobody sees a piece twice."""
    run_id, gate, end = f"killed-{uuid.uuid4().hex[:8]}", asyncio.Event(), asyncio.Event()
    lab.model.script(run_id, [Turn(STORY, gates={8: gate, 10: end})])
    given = {"agent": "thinker", "prompt": "Go.", "model": f"openai:{run_id}"}
    async with temporal_server(db=tmp_path / "temporal.db") as server:
        client = await connect_to(server)
        handle = await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue="kills")
        watcher = Watcher(handle, client)
        async with worker_process(MODULE, "kills", server, MULLIGAN_LIVE_TEXT_SECONDS="0.1") as worker:
            await watcher.until(21)
            worker.kill()
            await worker.wait()
        [stored] = lab.model.background.of(run_id)
        before = len(stored.streams)
        gate.set()
        async with worker_process(MODULE, "kills", server, MULLIGAN_LIVE_TEXT_SECONDS="0.1"):
            await watcher.until(35)
            end.set()
            assert (await handle.result())["output"] == STORY
            await watcher.end()
    assert stored.streams[before] == 7
    assert STORY.startswith(watcher.text)
    assert [event.attempt for event in watcher.events if event.type == "text_delta"][-1] == 1
    assert len(lab.model.background.of(run_id)) == 1


@pytest.mark.parametrize("killed_while", ["it is created", "it is waited for", "the server dies too"])
async def test_a_response_is_created_once_though_every_process_is_killed(
    killed_while: str, lab: Lab, tmp_path: Any
) -> None:
    """Where the endpoint supports idempotency keys; while the id is not recorded, nothing else can tell."""
    run_id, background = f"killed-{uuid.uuid4().hex[:8]}", lab.model.background
    released = asyncio.Event()
    lab.model.script(run_id, [Turn("Once.", wait=released)])
    [port] = free_ports(1)
    database = tmp_path / "temporal.db"
    given = {"agent": "thinker", "prompt": "Go.", "model": f"openai:{run_id}"}

    async def until(condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():
            await asyncio.sleep(0.05)

    async def is_created() -> bool:
        return bool(background.of(run_id))

    async with temporal_server(port=port, db=database) as server:
        client = await connect_to(server)
        handle = await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue="kills")
        background.hold = asyncio.Event() if killed_while == "it is created" else None
        try:
            async with worker_process(MODULE, "kills", server) as worker:
                await until(is_created)
                if background.hold is None:
                    await created(Lab(client, lab.model, lab.otlp, lab.telemetry), handle)
                worker.kill()
                await worker.wait()
        finally:
            background.hold = None
        if killed_while != "the server dies too":
            await _answered_by_another_worker(server, handle, released)
        else:
            for pid in descendants_with(str(port)):
                os.kill(pid, signal.SIGKILL)
    if killed_while == "the server dies too":
        async with temporal_server(port=port, db=database) as server:
            handle = (await connect_to(server)).get_workflow_handle(run_id)
            await _answered_by_another_worker(server, handle, released)
    [stored] = background.of(run_id)
    assert (stored.is_deleted, stored.is_cancelled) == (True, False)


async def _answered_by_another_worker(server: DevServer, handle: Handle, released: asyncio.Event) -> None:
    released.set()
    async with worker_process(MODULE, "kills", server):
        assert (await handle.result())["output"] == "Once."


async def test_the_example_of_the_page_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_FIRST", 0.2)
    names: dict[str, Any] = {"__name__": "page"}
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), names)
    queue = f"background-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([names["analyst"]], []), lab.telemetry, queue):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.look(
            await start(
                at, [Turn(calls=[("read_figures", '{"year": 2026}', None)]), Turn(text="Lamps sell.")], "analyst"
            )
        )
    assert (ran.result["status"], ran.calls[0]["result"]["text"]) == ("completed", '{"lamps": 1200, "bulbs": 5400}')
    assert [request.json["background"] for request in ran.requests if request.json] == [True, True]


async def test_a_response_whose_id_is_too_long_for_an_address_is_a_failed_attempt(
    at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt asks for another response; without one, the run fails, and asks for nothing without an end."""
    monkeypatch.setattr(background_responses, "made_up", lambda *_: LONG_ID)
    handle = await start(at, [Turn("Done.")], "impatient")
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    error = error_of(raised.value)
    assert isinstance(error, ModelUnavailableError)
    assert "100,005 characters" in error.message
