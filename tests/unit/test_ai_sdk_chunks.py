"""What our events become in the AI SDK's stream, where a live run shows it seldom: void text, how a run can end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mulligan.serve.ai_sdk import Translator, _replies
from mulligan.serve.turn_stream import Wait, WaitingCall
from mulligan.values import ErrorInfo, RunResult, StepResult, ToolCall, Usage
from mulligan.wire.event_types import (
    Answered,
    Decided,
    Event,
    MessageReceived,
    ModelFallback,
    RunEnded,
    StepStarted,
    TextDelta,
    TextVoid,
    ToolCallSettled,
    ToolCallStarted,
    Waiting,
)

AT = datetime(2026, 11, 22, tzinfo=UTC)
STEP = StepStarted(at=AT, offset=1, step=1, model="openai:a")
VOID = TextVoid(at=AT, step=1, attempt=1)
FALLBACK = ModelFallback(at=AT, offset=2, step=1, model="openai:b", error=ErrorInfo(kind="x", message="y"))


def delta(text: str, start: int = 0, attempt: int = 1) -> TextDelta:
    return TextDelta(at=AT, step=1, attempt=attempt, start=start, text=text)


def translate(*events: Event) -> list[dict[str, Any]]:
    translator = Translator(is_whole=True)
    return [chunk for event in events for chunk in translator.translate(event)]


def texts(chunks: list[dict[str, Any]]) -> list[str]:
    """The text parts that a client has at the end, which must be closed."""
    parts: dict[str, str] = {}
    is_open: set[str] = set()
    for chunk in chunks:
        match chunk["type"]:
            case "text-start":
                assert chunk["id"] not in parts
                parts[chunk["id"]] = ""
                is_open.add(chunk["id"])
            case "text-delta":
                assert chunk["id"] in is_open
                parts[chunk["id"]] += chunk["delta"]
            case "text-end":
                is_open.remove(chunk["id"])
            case "reset-step":
                parts, is_open = {}, set()
    assert not is_open
    return list(parts.values())


@pytest.mark.parametrize(
    ("events", "resets"),
    [
        ([delta("Hel"), delta("lo", 3)], 0),
        ([], 0),
        ([delta("Good"), VOID, delta("Hel", attempt=2)], 1),
        ([delta("Good")], 1),
        ([delta("lo", 3)], 1),
        ([delta("Good"), FALLBACK, delta("Hel", attempt=2)], 1),
    ],
)
def test_the_client_has_the_answer_and_no_text_that_became_void(events: list[Event], resets: int) -> None:
    answered = Answered(at=AT, offset=3, step=1, text="Hello", tool_calls=[], usage=Usage())
    chunks = translate(STEP, *events, answered)
    assert texts(chunks) == ["Hello"]
    assert sum(chunk["type"] == "reset-step" for chunk in chunks) == resets


def test_a_message_that_joins_the_run_steers_it() -> None:
    [chunk] = translate(MessageReceived(at=AT, offset=4, text="Hurry."))
    assert chunk == {"type": "steering-message", "id": "message-4", "parts": [{"type": "text", "text": "Hurry."}]}


@pytest.mark.parametrize(
    ("status", "error", "last"),
    [
        ("completed", None, {"type": "finish", "finishReason": "stop"}),
        ("max_steps", None, {"type": "finish", "finishReason": "other"}),
        ("truncated", None, {"type": "finish", "finishReason": "length"}),
        ("refused", None, {"type": "finish", "finishReason": "content-filter"}),
        ("stopped", None, {"type": "finish", "finishReason": "interrupted"}),
        ("cancelled", None, {"type": "abort", "reason": "The run was cancelled."}),
        ("failed", ErrorInfo(kind="ModelRequestError", message="No."), {"type": "error", "errorText": "No."}),
        ("timed_out", None, {"type": "error", "errorText": "The run ended: timed_out."}),
    ],
)
def test_each_end_of_a_run_is_the_end_of_the_message(
    status: Any, error: ErrorInfo | None, last: dict[str, str]
) -> None:
    """With our own event before it, which has the result."""
    fields: dict[str, Any] = {"status": status, "steps": 1, "usage": Usage(), "trace_id": "", "output": None}
    result = RunResult.model_validate(fields) if last["type"] == "finish" else None
    ended = RunEnded(at=AT, offset=9, turn=1, status=status, result=result, error=error)
    chunks = translate(STEP, delta("Half"), ended)
    assert [chunk["type"] for chunk in chunks[-4:-1]] == ["reset-step", "finish-step", "data-mulligan"]
    assert chunks[-1] == last


def test_what_version_6_does_not_know_is_not_sent_to_it() -> None:
    """Void text is followed by a sentence; a message that joins the run is a data part."""
    asked = Waiting(at=AT, offset=3, step=1, call_id="c", name="f", kind="approval", arguments={})
    decided = Decided(at=AT, offset=4, step=1, call_id="c", name="f", decision="approve")
    calls = [ToolCall(id="c", name="f", arguments="{}")]
    answered = Answered(at=AT, offset=2, step=1, text="Hello", tool_calls=calls, usage=Usage())
    joined = MessageReceived(at=AT, offset=5, text="Hurry.")
    fields: dict[str, Any] = {"status": "stopped", "steps": 1, "usage": Usage(), "trace_id": "", "output": None}
    ended = RunEnded(at=AT, offset=6, turn=1, status="stopped", result=RunResult.model_validate(fields))
    translator = Translator(is_whole=True, sdk=6)
    events: list[Event] = [STEP, delta("Good"), VOID, delta("Hel", attempt=2), answered, asked, decided, joined, ended]
    chunks = [chunk for event in events for chunk in translator.translate(event)]
    assert texts(chunks) == ["Good […] (This text was not completed, and is void.)", "Hello"]
    assert not {"reset-step", "tool-approval-response", "steering-message"} & {chunk["type"] for chunk in chunks}
    [steering] = [chunk for chunk in chunks if chunk["type"] == "data-steering-message"]
    assert steering["data"]["parts"] == [{"type": "text", "text": "Hurry."}]
    assert chunks[-1] == {"type": "finish", "finishReason": "other"}


def test_at_an_approval_no_other_call_is_without_a_result() -> None:
    """Pages send a decision only then. For an answer to a question, only calls count that have not begun."""
    calls = [ToolCall(id=each, name=each, arguments="{}") for each in ("asks", "runs", "later", "done")]
    events: list[Event] = [
        STEP,
        Answered(at=AT, offset=2, step=1, text="", tool_calls=calls, usage=Usage()),
        ToolCallStarted(at=AT, offset=3, step=1, call_id="runs", name="runs", arguments={}),
        ToolCallSettled(at=AT, offset=4, step=1, call_id="done", name="done", result=StepResult(text="x"), attempts=1),
    ]
    for kind, expected in (("approval", ["runs", "later"]), ("question", ["later"])):
        translator = Translator(is_whole=True)
        for event in events:
            translator.translate(event)
        fields = {"kind": kind, "tool": "asks", "arguments": {}, "text": "?"}
        chunks = translator.paused([Wait(WaitingCall("asks"), "asks", "5", fields)])
        outputs = {chunk["toolCallId"]: chunk["output"] for chunk in chunks if "output" in chunk}
        assert outputs == dict.fromkeys(expected, "There is no result yet.")


def test_the_end_after_a_step_with_calls_has_a_step_of_its_own() -> None:
    """Its part makes pages write it: an empty step is seen by nobody."""
    calls = [ToolCall(id="c", name="f", arguments="{}")]
    answered = Answered(at=AT, offset=2, step=1, text="", tool_calls=calls, usage=Usage())
    ended = RunEnded(at=AT, offset=9, turn=1, status="cancelled", result=None)
    chunks = translate(STEP, answered, ended)
    assert [chunk["type"] for chunk in chunks[-5:]] == [
        *("finish-step", "start-step", "data-mulligan", "finish-step", "abort"),
    ]


def test_an_approval_and_the_output_of_a_tool_of_the_page_are_replies() -> None:
    """A tool that asks is known by its metadata; other parts are none."""
    responded = {"state": "approval-responded", "approval": {"id": "6:c1", "approved": False, "reason": "No."}}
    asked = {"state": "output-available", "output": "Both.", "toolMetadata": {"mulligan": {"wait": "7:c2"}}}
    ran = {"state": "output-available", "output": "x"}
    first, second = _replies({"parts": [responded, asked, ran, 7, {"type": "text"}]})
    assert (first.wait_id, first.approved, first.reason) == ("6:c1", False, "No.")
    assert (second.wait_id, second.approved, second.text) == ("7:c2", None, "Both.")
