"""What our events become in AG-UI, where a live run shows it seldom: text that became void, and how a run can end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mulligan.run_input import RunInput
from mulligan.serve.ag_ui import RunAgentInput, Translator, _reply
from mulligan.serve.threads import ThreadTurn
from mulligan.values import ErrorInfo, RunResult, Usage
from mulligan.wire.event_types import (
    Answered,
    Event,
    MessageReceived,
    ModelFallback,
    RunEnded,
    StepStarted,
    TextDelta,
    TextVoid,
)

AT = datetime(2026, 11, 22, tzinfo=UTC)
VOID = TextVoid(at=AT, step=1, attempt=1)
FALLBACK = ModelFallback(at=AT, offset=2, step=1, model="openai:b", error=ErrorInfo(kind="x", message="y"))


def delta(text: str, start: int = 0, attempt: int = 1) -> TextDelta:
    return TextDelta(at=AT, step=1, attempt=attempt, start=start, text=text)


def answered(text: str) -> Answered:
    return Answered(at=AT, offset=3, step=1, text=text, tool_calls=[], usage=Usage())


def translate(*events: Event) -> list[dict[str, Any]]:
    turn = ThreadTurn("run", RunInput(agent="a", prompt="Hi", metadata={"message_id": "m1"}), is_open=True)
    translator = Translator(RunAgentInput(thread_id="t", run_id="r"), turn)
    return [sent for event in events for sent in translator.translate(event)]


def screen(sent: list[dict[str, Any]]) -> dict[str, str]:
    """The texts that a client shows, by the ids of their messages."""
    texts: dict[str, str] = {}
    for event in sent:
        match event["type"]:
            case "TEXT_MESSAGE_START":
                assert event["messageId"] not in texts
                texts[event["messageId"]] = ""
            case "TEXT_MESSAGE_CONTENT":
                assert event["delta"]
                texts[event["messageId"]] += event["delta"]
            case "MESSAGES_SNAPSHOT":
                texts = {message["id"]: message["content"] for message in event["messages"]}
    return texts


@pytest.mark.parametrize(
    ("events", "names"),
    [
        ([delta("Hel"), delta("lo", 3), answered("Hello")], []),
        ([delta("Hel"), answered("Hello")], []),
        ([answered("Hello")], []),
        ([delta("Good"), VOID, delta("Hel", attempt=2), answered("Hello")], ["mulligan.text_void"]),
        ([delta("Good"), answered("Hello")], []),
        ([delta("lo", 3), answered("Hello")], []),
        ([delta("Good"), FALLBACK, delta("Hel", attempt=2), answered("Hello")], ["mulligan.model_fallback"]),
    ],
)
def test_the_client_shows_the_answer_and_no_text_that_became_void(events: list[Event], names: list[str]) -> None:
    sent = translate(StepStarted(at=AT, offset=1, step=1, model="openai:a"), *events)
    assert [text for text in screen(sent).values() if text != "Hi"] == ["Hello"]
    assert [event["name"] for event in sent if event["type"] == "CUSTOM"] == names
    opened = [event["messageId"] for event in sent if event["type"] == "TEXT_MESSAGE_START"]
    assert opened == [event["messageId"] for event in sent if event["type"] == "TEXT_MESSAGE_END"]
    assert len(set(opened)) == len(opened), "a text that is written again is another message"


def test_a_message_that_joins_the_run_is_the_users() -> None:
    start, content, end = translate(MessageReceived(at=AT, offset=4, text="Hurry."))
    assert (start["role"], content["delta"], end["type"]) == ("user", "Hurry.", "TEXT_MESSAGE_END")


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        ("completed", None, "success"),
        ("max_steps", None, "success"),
        ("stopped", None, "cancelled"),
        ("cancelled", None, "cancelled"),
        ("failed", ErrorInfo(kind="ModelRequestError", message="No."), "ModelRequestError"),
        ("timed_out", None, "timed_out"),
    ],
)
def test_each_end_of_a_run_closes_what_is_open(status: Any, error: ErrorInfo | None, kind: str) -> None:
    """A failure is RUN_ERROR with the kind of the error; a run that was stopped is neither a success nor a failure."""
    has_result = kind == "success" or status == "stopped"
    fields: dict[str, Any] = {"status": status, "steps": 1, "usage": Usage(), "trace_id": ""}
    result = RunResult.model_validate({**fields, "output": None}) if has_result else None
    ended = RunEnded(at=AT, offset=9, turn=1, status=status, result=result, error=error)
    sent = translate(StepStarted(at=AT, offset=1, step=1, model="openai:a"), delta("Half"), ended)
    assert [event["type"] for event in sent[-4:-1]] == ["TEXT_MESSAGE_END", "MESSAGES_SNAPSHOT", "STEP_FINISHED"]
    assert sent[-1].get("code", sent[-1].get("outcome", {}).get("type")) == kind


@pytest.mark.parametrize(
    ("entry", "fields"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, {"approved": True}),
        ({"status": "resolved", "payload": {"approved": False, "reason": "No."}}, {"approved": False, "reason": "No."}),
        ({"status": "resolved", "payload": {"approved": True, "editedArgs": {"a": 1}}}, {"arguments": {"a": 1}}),
        ({"status": "resolved", "payload": True}, {"approved": True, "text": "true"}),
        ({"status": "resolved", "payload": "Both."}, {"approved": None, "text": "Both."}),
        ({"status": "resolved", "payload": {"answer": "Both."}}, {"approved": None, "text": "Both."}),
        ({"status": "resolved", "payload": {"answer": "a", "b": 1}}, {"text": '{"answer": "a", "b": 1}'}),
        ({"status": "cancelled"}, {"approved": False, "reason": "The person cancelled it."}),
    ],
)
def test_an_interrupt_is_answered_in_each_form_that_clients_have(entry: Any, fields: dict[str, Any]) -> None:
    given = RunAgentInput.model_validate({"threadId": "t", "runId": "r", "resume": [{"interruptId": "6:c1", **entry}]})
    assert given.resume is not None
    reply = _reply(given.resume[0])
    assert (reply.wait_id, {name: getattr(reply, name) for name in fields}) == ("6:c1", fields)
