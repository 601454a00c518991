"""Statuses, kinds, events and fields of a later version: each door and each reader takes them, and none raises."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import AsyncMock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from rich.console import Console

from mulligan import RunResult
from mulligan.cli import show
from mulligan.cli._live_view import LiveView
from mulligan.cli.list_runs import _cells
from mulligan.client.event_position import START as START_POSITION
from mulligan.client.origins.chained_run import ChainedRun
from mulligan.client.query_answers import check_answer
from mulligan.client.read_run import ChainSize, RunEnd
from mulligan.client.watch_run import WatchedEvent
from mulligan.errors import InvalidRunInputError, UpdateRefusedError
from mulligan.run_input import parse_run_input
from mulligan.run_view.run_view import RunView
from mulligan.schema.printable import printable
from mulligan.serve import ag_ui, ai_sdk
from mulligan.serve.console.live_steps import live_frames
from mulligan.serve.console.rendering import render
from mulligan.serve.console.run_page import RunPage
from mulligan.serve.console.run_rows import RunRow
from mulligan.serve.console.step_events import StepEvents
from mulligan.serve.console.timeline import draw_timeline
from mulligan.serve.mcp_api.progress_message import progress_message
from mulligan.serve.mcp_api.run_outcome import outcome_of
from mulligan.serve.openai_api.chat_text import ChatText, finish_reason
from mulligan.serve.openai_api.response_events import ResponseEvents, ResponseHead
from mulligan.serve.runs import RunInfo
from mulligan.values import Progress, Step, SubRun, WaitingFor
from mulligan.wire.agent_facts import ModelFacts
from mulligan.wire.event_types import EVENT, Event
from mulligan.wire.experiments import Row
from mulligan.wire.model_call import ModelAnswer
from mulligan.wire.parse_update import parse_update
from mulligan.wire.updates import SendMessage
from tests.support.examples import examples
from tests.support.random_run_events import START, RandomRun

WORD_FIELDS = {"status", "kind", "decision", "by"}
"""The fields of events and answers whose values are words of a list that grows."""


class Invented(BaseModel):
    """An event of a later version."""

    type: Literal["invented"] = "invented"
    status: str


class Words:
    """Puts words in place of those that this version knows, here and there."""

    def __init__(self, random: Random, words: list[str]) -> None:
        self._random, self._words = random, words

    def new(self) -> str:
        return self._random.choice(self._words)

    def of(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.of(each) for each in value]
        if not isinstance(value, dict):
            return value
        changed = {name: self._changed(name, each) for name, each in value.items()}
        return changed | ({"later": {"kind": self.new()}} if self._random.random() < 0.2 else {})

    def _changed(self, name: str, value: Any) -> Any:
        is_word = name in WORD_FIELDS and isinstance(value, str)
        return self.new() if is_word and self._random.random() < 0.7 else self.of(value)


words_of_later_versions = st.builds(
    Words,
    st.integers(0, 2**32).map(Random),
    st.lists(
        st.text(min_size=1, max_size=12) | st.sampled_from(["paused", "{", "<b>", "[red]"]), min_size=1, max_size=4
    ),
)
randoms = st.integers(0, 2**32).map(Random)
tried = settings(derandomize=True, deadline=None, max_examples=examples(15))


def events_of(random: Random, words: Words) -> list[Event]:
    """A run's events as a later version may write them."""
    events: list[Any] = []
    for event in RandomRun(random).make():
        if random.random() < 0.1:
            events.append(Invented(status=words.new()))
        events.append(EVENT.validate_python(words.of(event.model_dump(mode="json"))))
    return events


def answers_of(words: Words) -> dict[str, Any]:
    """What the queries of a run return."""
    waiting = {"kind": words.new(), "since": START.isoformat(), "detail": "waiting"}
    error = {"kind": words.new(), "message": "No."}
    run = {"id": "run/1", "agent": "helper", "status": words.new(), "steps": 1}
    decision = {"kind": words.new(), "decision": words.new(), "since": START.isoformat(), "at": START.isoformat()}
    call = {
        "id": "c",
        "name": "find",
        "raw_arguments": "{}",
        "arguments": {},
        "repairs": [{"by": words.new(), "before": "{", "after": {}}],
        "result": {"text": "r", "error": error},
        "decision": decision,
        "deferred": {"kind": words.new(), "since": START.isoformat(), "started": "job"},
        "attempts": 2,
        "run": run,
    }
    step = {"step": 1, "text": "", "tool_calls": [call], "usage": {}, "error": error, "model": "openai:a"}
    progress = {"status": words.new(), "step": 1, "max_steps": 2, "usage": {}, "tool_calls": 1, "recovered_failures": 1}
    progress["waiting_for"] = waiting
    progress["conversations"] = [{"conversation": "0", "agent": "a", "status": words.new()}]
    result = {"status": words.new(), "output": "Half.", "steps": 1, "usage": {}, "trace_id": "t"}
    return {"progress": progress, "step": step, "result": result, "waiting": waiting, "run": run, "error": error}


def info_of(answers: dict[str, Any], *, is_open: bool) -> RunInfo:
    status = answers["progress" if is_open else "result"]["status"]
    info = RunInfo(
        id="r", agent="a", status=status, started=START, progress=Progress(**answers["progress"]).model_dump()
    )
    if is_open:
        return info.model_copy(update={"waiting_for": answers["waiting"]})
    result = RunResult.model_validate(answers["result"]).model_dump(mode="json")
    return info.model_copy(update={"ended": START, "result": result, "error": answers["error"]})


@tried
@given(randoms, words_of_later_versions)
def test_protocols_translate_each_event(random: Random, words: Words) -> None:
    events = events_of(random, words)
    ag_ui_run = ag_ui.Translator(ag_ui.RunAgentInput(thread_id="t", run_id="r"), None)
    ai_sdk_run, response, chat = (
        ai_sdk.Translator(is_whole=True),
        ResponseEvents(ResponseHead("resp_1", "a", 0)),
        ChatText("r"),
    )
    view = RunView()
    for event in events:
        sent: list[Any] = [*ag_ui_run.translate(event), *ai_sdk_run.translate(event), *response.translate(event)]
        sent += [*chat.pieces(event), *(progress_message("r", change) for change in view.add(event))]
        json.dumps([*sent, response.to_json()])
    [end] = [event for event in events if event.type == "run_ended"]
    assert view.status == end.status
    assert response.to_json()["mulligan"]["status"] == end.status
    assert finish_reason(end) in ("stop", "length", "content_filter")


@tried
@given(randoms, words_of_later_versions)
def test_the_command_tail_prints_each_event(random: Random, words: Words) -> None:
    printed = io.StringIO()
    live = LiveView(Console(file=printed, width=100), "r")
    for event in events_of(random, words):
        live.show(event)
    assert "step 1" in printed.getvalue()


@tried
@given(randoms, words_of_later_versions, st.booleans())
def test_the_console_shows_each_run(random: Random, words: Words, is_open: bool) -> None:
    events = events_of(random, words)
    info = info_of(answers_of(words), is_open=is_open)
    view = RunView.of(events)
    described: Any = SimpleNamespace(status=None, start_time=START, close_time=info.ended, parent_id=None, run_id="1")
    page = RunPage("r", described, info, None, StepEvents(1, 9, 9, "", events), view.entries)
    page.timeline = draw_timeline(page.steps, START + timedelta(hours=1))
    shown = partial(render, root="", session=None, here="", note=None, run=page, run_id="r")
    for template in ("_summary.html", "_transcript.html", "_timeline.html"):
        shown(template)
    listed = {"id": "r", "agent": "a", "status": info.status, "started": START, "seconds": 1.0}
    rows = render("_run_rows.html", "", rows=[RunRow(listed, info)], filters={}, cursor=None, next=None)
    assert 'data-label="Status"' in rows
    asyncio.run(
        read_all(
            live_frames(
                watched(events), lambda entry: render("_entry.html", "", entry=entry, run_id="r"), lambda _: None
            )
        )
    )


async def watched(events: list[Event]) -> AsyncIterator[WatchedEvent]:
    for number, event in enumerate(events):
        yield WatchedEvent(event, str(number), START_POSITION)


async def read_all(frames: AsyncIterator[bytes]) -> None:
    async for _ in frames:
        pass


@tried
@given(words_of_later_versions, st.booleans())
def test_commands_and_answers_show_what_queries_return(words: Words, is_open: bool) -> None:
    answers = answers_of(words)
    check_answer("progress", answers["progress"])
    check_answer("steps", {"steps": [answers["step"]], "next": None, "total": 1})
    check_answer("events", {"events": [{"type": words.new(), "offset": 0}], "next": None, "total": 1})
    info = info_of(answers, is_open=is_open)
    listed = {"id": "r", "agent": "a", "status": info.status, "started": START.isoformat(), "seconds": 1.0}
    assert "step 1" in printed(answers, is_open=is_open)
    assert _cells(listed)[3].plain == printable(info.status)
    if not is_open:
        outcome = outcome_of(info)
        assert outcome.is_error is True


def test_what_others_have_written_may_have_fields_of_a_later_version() -> None:
    later: dict[str, Any] = {"later": 1}
    image = {"type": "image", "url": "https://example.com/a.png", **later}
    user = {"role": "user", "content": [{"type": "text", "text": "Hi.", **later}, image], **later}
    answer = {"role": "assistant", "text": "Hello.", "provider_data": later, **later}
    result = {"role": "tool", "call_id": "c", "name": "find", "content": [image], **later}
    check_answer("messages", {"messages": [user, answer, result], "next": None, "total": 3, **later})
    event = {"type": "message", "at": START.isoformat(), "offset": 0, "text": "Hi.", "content": user["content"]}
    assert "later" not in EVENT.validate_python(event).model_dump_json()
    read = ModelAnswer.model_validate({"message": answer, "usage": {}, **later})
    assert read.message.provider_data == later
    assert ModelFacts.model_validate({"model": "a", "prices": {"a": {"input": 1, "output": 2, **later}}}).prices
    identity = {"id": "r", "run_id": "1", "request": "d"}
    memo = AsyncMock(return_value={"resumed_from": {**identity, **later}})
    described: Any = SimpleNamespace(workflow_type="AgentWorkflow", memo=memo)
    continued = asyncio.run(ChainedRun.of(described)).continued
    assert continued is not None
    assert continued.identity == identity
    assert Row.model_validate({"id": "r", "outcome": "later"}).outcome == "later"


@pytest.mark.parametrize(
    "message", [{"content": [{"type": "text", "text": "Hi.", "later": 1}]}, {"text": "Hi.", "later": 1}]
)
def test_a_request_with_an_unknown_field_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(UpdateRefusedError, match="later"):
        parse_update(SendMessage, message)
    given = {"agent": "a", "messages": [{"role": "user", **message}]}
    with pytest.raises(InvalidRunInputError, match="later"):
        parse_run_input(json.dumps(given).encode())


def printed(answers: dict[str, Any], *, is_open: bool) -> str:
    """What `mulligan show` prints."""
    steps = [Step.model_validate(answers["step"]).model_dump(mode="json")]
    SubRun.model_validate(answers["run"])
    result = RunResult.model_validate(answers["result"]).model_dump(mode="json")
    end = RunEnd(answers["progress"]["status"]) if is_open else RunEnd(result["status"], result)
    waiting = WaitingFor.model_validate(answers["waiting"]) if is_open else None
    state = show._RunState(
        "r",
        is_open,
        [("", steps)],
        waiting,
        answers["progress"],
        end,
        [],
        ChainSize(1, 2, 3),
        {},
        [],
        {"agent": "a"},
        "",
    )
    text = io.StringIO()
    with patch.object(show, "out", Console(file=text, width=100)):
        show._print_state(state)
    return text.getvalue()
