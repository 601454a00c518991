"""The events of a run: typed, in order, each once; for any watcher at any time, whatever happens to workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from mulligan import Agent, events
from mulligan.client.follow_events import EventFollower
from mulligan.devserver import DevServer
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.command_server import run_command
from tests.support.compaction_agents import PROMPT, reading
from tests.support.lab import DONE, Lab, call
from tests.support.openai_stream import Break
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

LONG = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 6
OFTEN = {"MULLIGAN_LIVE_TEXT_SECONDS": "0.1"}


async def all_events(client: Client, run_id: str, since: str = "", every: float = 0.1) -> list[events.Event]:
    return [event async for event in events.follow(client, run_id, since=since, every=every)]


def without_tokens(found: list[events.Event]) -> list[dict[str, Any]]:
    """The events from history, without their tokens. Streamed text and input differ from one watcher to another."""
    streamed = ("text_", "tool_input_")
    return [event.model_dump(exclude={"token"}) for event in found if not event.type.startswith(streamed)]


def in_order(found: list[events.Event]) -> bool:
    offsets = [event["offset"] for event in without_tokens(found)]
    return offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@asynccontextmanager
async def streaming_lab(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, module: str = "tests.support.shop_agents"
) -> AsyncIterator[Lab]:
    """A worker that sends the streamed text of its models ten times a second."""
    for name, value in OFTEN.items():
        monkeypatch.setenv(name, value)
    queue = f"watched-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load([module]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def test_each_mistake_is_an_event_and_each_token_resumes_right_after_it(lab: Lab) -> None:
    """Repairs, unknown tools and fixers have their events."""
    turns = [
        Turn("Let me look.", calls=[("search_orders", "{'customer': 'Ada',}", "a"), ("serch_orders", "{}", "b")]),
        call("click", '{"element": "#go"}', "c"),
        DONE,
    ]
    ran = await lab.run(turns)
    found = await all_events(lab.client, ran.id)
    assert [event.type for event in found] == [
        "run_started",
        *("step_started", "answered", "tool_call_repaired", "tool_call_started", "tool_call_settled", "tool_call_settled"),
        *("step_started", "answered", "tool_call_repaired", "tool_call_started", "tool_call_settled"),
        *("step_started", "answered", "run_ended"),
    ]  # fmt: skip
    assert in_order(found)
    assert [event.at for event in found] == sorted(event.at for event in found)
    first, answered, repaired, started, told = found[0], *found[2:6]
    assert isinstance(first, events.RunStarted)
    assert (first.agent, first.model, first.turn) == ("shop", f"openai-chat:{ran.id}", 1)
    assert isinstance(answered, events.Answered)
    assert answered.text == "Let me look."
    assert [each.arguments for each in answered.tool_calls] == ["{'customer': 'Ada',}", "{}"]
    assert isinstance(repaired, events.ToolCallRepaired)
    assert [repair.by for repair in repaired.repairs] == ["json:single_quotes+trailing_commas"]
    assert isinstance(told, events.ToolCallSettled)
    assert told.result.error is not None
    assert (told.call_id, told.result.error.kind, told.attempts) == ("b", "unknown_tool", 0)
    assert isinstance(started, events.ToolCallStarted)
    assert (started.call_id, started.arguments) == ("a", {"customer": "Ada"})
    end = found[-1]
    assert isinstance(end, events.RunEnded)
    assert end.result is not None
    assert end.result.model_dump() == ran.result
    for place, event in enumerate(found):
        assert await all_events(lab.client, ran.id, event.token or "") == found[place + 1 :]
        assert events.EVENT.validate_json(events.EVENT.dump_json(event)) == event


async def test_failed_and_terminated_runs_have_a_run_ended_event(lab: Lab) -> None:
    """Also if the run failed because of its input."""
    failed = await lab.run([call("clik")], agent="strict")
    bad = await lab.client.start_workflow("AgentWorkflow", {"agent": 7}, id=f"bad-{failed.id}", task_queue="agents")
    gone = await lab.start([Turn("x", wait=asyncio.Event())])
    await lab.model.wait_for_requests(1, model=gone.id)
    await gone.terminate()
    for run_id, count, status, kind in (
        (failed.id, 5, "failed", "unknown_tool"),  # with the result of its call
        (bad.id, 1, "failed", "InvalidRunInputError"),
        (gone.id, 3, "terminated", "TerminatedError"),
    ):
        found = await all_events(lab.client, run_id)
        end = found[-1]
        assert isinstance(end, events.RunEnded)
        assert (len(found), end.status, end.error and end.error.kind) == (count, status, kind)
        assert in_order(found)
        assert await all_events(lab.client, run_id, end.token or "") == []
    with pytest.raises(ValueError, match="'x' is not the token"):
        await all_events(lab.client, failed.id, "x")


async def test_waits_decisions_messages_and_the_stop_are_events(lab: Lab) -> None:
    """With the arguments that the approval was asked for, and those that the call ran with."""
    handle = await lab.start([call("refund", '{"order": 7, "amount": {"euros": 9}}', "a")] * 2, agent="desk")
    asked: list[events.Event] = []
    async for event in events.follow(lab.client, handle.id, every=0.1):
        asked.append(event)
        if isinstance(event, events.Waiting) and event.step == 1:
            await handle.execute_update("send_message", {"text": "Be generous."})
            edited = {"order": 7, "amount": {"euros": 10}}
            said = {"call_id": event.call_id, "decision": "approve", "by": "Ada", "arguments": edited}
            await handle.execute_update("decide", said)
        elif isinstance(event, events.Waiting):
            await handle.execute_update("stop", {"reason": "enough"})
    found = await all_events(lab.client, handle.id)
    assert without_tokens(found) == without_tokens(asked)
    assert [event.type for event in found] == [
        *("run_started", "step_started", "answered", "waiting", "decided", "tool_call_started", "tool_call_settled"),
        *("message", "step_started", "answered", "waiting", "stopping", "decided", "tool_call_settled", "run_ended"),
    ]
    waiting, decided, started = found[3:6]
    assert isinstance(waiting, events.Waiting)
    assert isinstance(decided, events.Decided)
    assert isinstance(started, events.ToolCallStarted)
    assert (waiting.kind, waiting.arguments) == ("approval", {"order": 7, "amount": {"euros": 9.0}})
    assert (decided.decision, decided.by, decided.edited) == ("approve", "Ada", True)
    assert started.arguments == {"order": 7, "amount": {"euros": 10.0}}
    message, stopping, stopped = found[7], found[11], found[12]
    assert isinstance(message, events.MessageReceived)
    assert isinstance(stopping, events.Stopping)
    assert isinstance(stopped, events.Decided)
    assert (message.text, stopping.reason, stopped.decision) == ("Be generous.", "enough", "stopped")


async def test_two_watchers_see_the_streamed_text_once_and_history_has_none_of_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the watchers leaves and resumes by its token."""
    for api in ("openai", "openai-chat"):
        seen: Counter[tuple[int, str]] = Counter()
        gates = {(step, number): asyncio.Event() for step in (1, 2) for number in (1, 2)}

        async def watch(
            run_id: str, who: str, since: str = "", *, stays: bool = True, seen: Any = seen, gates: Any = gates
        ) -> list[events.Event]:
            """The events for one watcher. The model waits until both have got a first piece of the text, and then a second one."""
            found = []
            async for event in events.follow(lab.client, run_id, since=since, every=0.1):
                found.append(event)
                if isinstance(event, events.TextDelta):
                    seen[event.step, who] += 1
                    for (step, number), gate in gates.items():
                        if min(seen[step, "stays"], seen[step, "comes back"]) >= number:
                            gate.set()
                    if not stays:
                        break
            return found

        turns = [
            Turn(LONG, calls=[("now", "{}", None)], pace=0.02, gates={20: gates[1, 1], 40: gates[1, 2]}),
            Turn("naïve 🙈 " * 40, pace=0.02, gates={15: gates[2, 1], 30: gates[2, 2]}),
        ]
        async with streaming_lab(lab, monkeypatch) as at:
            handle = await at.start(turns, api=api)
            staying = asyncio.create_task(watch(handle.id, "stays"))
            first = await watch(handle.id, "comes back", stays=False)
            coming_back = first + await watch(handle.id, "comes back", first[-1].token or "")
            stayed = await staying
            ran = await at.look(handle)
        for found in (stayed, coming_back):
            assert without_tokens(found) == without_tokens(stayed)
            for step, whole in ((1, LONG), (2, ran.result["output"])):
                deltas = [event for event in found if isinstance(event, events.TextDelta) and event.step == step]
                assert len(deltas) > 1
                assert whole.startswith("".join(delta.text for delta in deltas))
                assert [delta.start for delta in deltas[1:]] == [one.start + len(one.text) for one in deltas[:-1]]
            order = [event.type for event in found]
            assert order.index("text_delta") > order.index("step_started")
        history = await handle.fetch_history()
        assert b"stormy night" in b"".join(event.SerializeToString() for event in history.events)
        assert all("heartbeat" not in str(event).lower() or event.event_type == 10 for event in history.events)


async def test_text_of_a_broken_off_model_is_not_mixed_with_that_of_its_fallback(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first model's connection breaks in the middle of its text."""
    for name, value in OFTEN.items():
        monkeypatch.setenv(name, value)
    first, second, queue = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("first", "second", "fallback"))
    breaks, goes_on = asyncio.Event(), asyncio.Event()
    lab.model.script(first, [Turn("Once upon " * 60, break_first=[Break(60, wait=breaks, drop=True)])])
    lab.model.script(second, [Turn(LONG, gates={20: goes_on})])
    teller = Agent(name="teller", model=[f"openai:{first}", f"openai-chat:{second}"], model_attempts=1)
    async with running_worker(lab.client, load_agents([teller], []), lab.telemetry, queue):
        given = {"agent": "teller", "prompt": "Go."}
        await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        found = []
        async for event in events.follow(lab.client, queue, every=0.1):
            found.append(event)
            if isinstance(event, events.TextDelta):
                (goes_on if LONG.startswith(event.text, event.start) else breaks).set()
    assert [event.type for event in found if not event.type.startswith("text_")] == [
        *("run_started", "step_started", "model_fallback", "answered", "run_ended")
    ]
    place = next(n for n, event in enumerate(found) if isinstance(event, events.ModelFallback))
    before, after = (
        "".join(event.text for event in part if isinstance(event, events.TextDelta))
        for part in (found[:place], found[place:])
    )
    assert before
    assert before.startswith("Once upon")
    assert after
    assert LONG.startswith(after)


async def test_streaming_can_be_switched_off_for_a_worker_or_an_agent(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's setting is for servers whose streamed tool calls are broken."""
    streamed = []
    for seconds, agent in (("1", "shop"), ("0", "shop"), ("1", "whole")):
        monkeypatch.setenv("MULLIGAN_LIVE_TEXT_SECONDS", seconds)
        loaded = load(["tests.support.shop_agents"])
        loaded.registry.agents["whole"] = replace(loaded.registry.agents["shop"], model_settings={"stream": False})
        async with running_worker(lab.client, loaded, lab.telemetry, f"whole-{seconds}-{agent}"):
            at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"whole-{seconds}-{agent}")
            ran = await at.run([DONE], agent=agent)
        streamed.append(ran.requests[0].json.get("stream"))
    assert streamed == [True, None, None]


async def test_text_streamed_by_a_killed_worker_is_void_and_streamed_again(lab: Lab, temporal: DevServer) -> None:
    """kill -9: a `text_void` event is sent, the next attempt streams again, and `answered` has the whole text once."""
    queue = f"dies-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    handle = await at.start([Turn(LONG, break_first=[Break(20, wait=asyncio.Event())], pace=0.03), DONE])
    found: list[events.Event] = []

    async def watch() -> None:
        async for event in events.follow(lab.client, handle.id, every=0.1):
            found.append(event)

    watching = asyncio.create_task(watch())
    async with worker_process("tests.support.shop_agents", queue, temporal, **OFTEN) as first:
        while not any(event.type == "text_delta" for event in found):
            await asyncio.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        await first.wait()
    async with worker_process("tests.support.shop_agents", queue, temporal, **OFTEN):
        await watching
        late = await all_events(lab.client, handle.id)
        resumed = await all_events(
            lab.client, handle.id, next(event.token or "" for event in found if event.type == "text_delta")
        )
    texts = [event for event in found if event.type in ("text_delta", "text_void", "answered")]
    [void] = [event for event in found if isinstance(event, events.TextVoid)]
    assert void.attempt == 1
    place = texts.index(void)
    before, after = texts[:place], texts[place + 1 : -1]
    assert {event.attempt for event in before if isinstance(event, events.TextDelta)} == {1}
    again = [event for event in after if isinstance(event, events.TextDelta)]
    assert {event.attempt for event in again} == {2}
    assert again[0].start == 0
    assert LONG.startswith("".join(event.text for event in again))
    answered = texts[-1]
    assert isinstance(answered, events.Answered)
    assert answered.text == LONG
    assert in_order(found)
    assert without_tokens(found) == without_tokens(late)
    assert resumed[0].type == "answered"


async def test_event_offsets_continue_over_a_chain_of_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is compacted too; a late watcher gets the same events, and the events of each step alone."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 20)
    of_steps: dict[int, list[events.Event]] = {}
    async with streaming_lab(lab, monkeypatch, "tests.support.compaction_agents") as at:
        handle = await at.start(reading(12), agent="page_reader", prompt=PROMPT)
        live = await all_events(lab.client, handle.id)
        late = await all_events(lab.client, handle.id)
        page = await handle.query("events", args=[0, 5])
        assert page["events"] == []
        assert page["earlier"]["run_id"]
        middle = late[len(late) // 3]
        assert await all_events(lab.client, handle.id, middle.token or "") == late[len(late) // 3 + 1 :]
        description = await lab.client.get_workflow_handle(handle.id).describe()
        assert description.run_id != handle.first_execution_run_id
        for step in range(1, 15):
            reader = EventFollower(lab.client, handle.id, "", 1)
            reader.page_size = 2
            of_steps[step] = [event async for event in reader.stored_events(step=step)]
            assert (reader.steps, reader.total) == (13, len(late))
    assert of_steps[14] == []
    assert without_tokens([event for each in of_steps.values() for event in each]) == without_tokens(late[1:])
    assert [each[0].type for each in of_steps.values() if each].count("compacted") > 1
    assert all({getattr(event, "step", step) for event in each} <= {step} for step, each in of_steps.items())
    assert without_tokens(live) == without_tokens(late)
    assert in_order(late)
    assert late[0].type == "run_started"
    steps = [event.step for event in late if isinstance(event, events.Answered)]
    assert steps == list(range(1, 14))
    assert len([event for event in late if isinstance(event, events.Compacted)]) > 1
    assert all(one.at <= two.at for one, two in pairwise(late))


async def test_streamed_text_is_encrypted_in_heartbeats(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats go through the codec, like all payloads."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", "n:" + "bm5u" * 10 + "bm4=")
    client = await lab.another_client()
    at = Lab(client, lab.model, lab.otlp, lab.telemetry)
    async with streaming_lab(at, monkeypatch) as at:
        described = asyncio.Event()
        handle = await at.start([Turn(LONG, gates={40: described})])
        beats: list[bytes] = []
        async for event in events.follow(client, handle.id, every=0.1):
            if event.type == "text_delta":
                assert "dark" in LONG[: event.start + len(event.text)]
                description = (await handle.describe()).raw_description
                beats += [payload.SerializeToString() for each in description.pending_activities for payload in each.heartbeat_details.payloads]  # fmt: skip
                described.set()
    assert beats
    assert b"stormy" not in b"".join(beats)
    assert all(b"binary/encrypted" in beat for beat in beats)


async def test_tail_events_prints_one_json_object_a_line_and_since_resumes(lab: Lab, temporal: DevServer) -> None:
    """`--since` takes a token."""
    ran = await lab.run([call("clik"), DONE])
    found = await all_events(lab.client, ran.id)

    async def tail(*words: str) -> tuple[int, str]:
        code, out, _ = await run_command("tail", ran.id, *words, env={**os.environ, **environment_of(temporal)})
        return code, out.decode()

    (code, out), (_, rest), (_, seen) = await asyncio.gather(
        tail("--events"), tail("--events", "--since", found[2].token or ""), tail("--since", found[2].token or "")
    )
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [event.model_dump(mode="json") for event in found]
    assert rest.splitlines() == out.splitlines()[3:]
    assert "step 1" not in seen
    assert "returned to the model: unknown_tool" in seen


async def test_the_example_of_the_events_page_runs_as_printed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs on the agent that docs/events.md names."""
    page = (Path(__file__).parent.parent.parent / "docs/events.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(page.split("```python\n")[1].split("```")[0], "docs/events.md", "exec", dont_inherit=True), names)
    async with streaming_lab(lab, monkeypatch, "examples.storyteller") as at:
        handle = await at.client.start_workflow(
            "AgentWorkflow", {"agent": "storyteller", "prompt": "Go."}, id=at.task_queue, task_queue=at.task_queue
        )
        token = await names["watch"](at.client, handle.id)
        found = await all_events(at.client, handle.id)
    out = capsys.readouterr().out
    assert "look_outside: invalid_arguments" in out
    assert out.count("It was a dark and stormy night") > 3
    assert out.endswith("completed\n")
    assert token == found[-1].token == str(len(found))
