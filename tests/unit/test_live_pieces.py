"""The pieces of what a model is writing, one after the other: which changes each of them makes to the view of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.wire.event_types import EVENT

AT = datetime(2026, 11, 25, 12, tzinfo=UTC)
ANSWER = {"type": "answered", "offset": 1, "text": "", "tool_calls": [], "usage": {}}


def text(text: str, start: int = 0, attempt: int = 1, step: int = 1) -> dict[str, Any]:
    return {"type": "text_delta", "step": step, "attempt": attempt, "start": start, "text": text}


def written(text: str, start: int = 0, attempt: int = 1, index: int = 0) -> dict[str, Any]:
    place = {"step": 1, "attempt": attempt, "index": index, "start": start}
    return {"type": "tool_input_delta", **place, "call_id": f"c{index}", "name": "find", "text": text}


def shown(*events: dict[str, Any], joins_gaps: bool = True) -> list[tuple[Any, ...]]:
    """What each event changes, in short."""
    view = RunView(joins_gaps=joins_gaps)
    view.add(EVENT.validate_python({"type": "step_started", "at": AT, "offset": 0, "step": 1, "model": "m"}))
    return [
        _short(change) for each in events for change in view.add(EVENT.validate_python({"at": AT, "step": 1, **each}))
    ]


def _short(change: changes.Change) -> tuple[Any, ...]:
    match change:
        case changes.TextOpened():
            return "open", change.number
        case changes.TextExtended():
            return "text", change.text, change.seen
        case changes.TextClosed():
            return "void" if change.is_void else "close", change.text
        case changes.InputOpened() | changes.InputVoid():
            return type(change).__name__, change.call.index, change.call.attempt
        case changes.InputExtended():
            return "input", change.call.index, change.text
        case changes.CallAnnounced():
            return "call", change.call.id, change.written is not None
    return (type(change).__name__,)


def test_the_pieces_of_one_attempt_follow_each_other() -> None:
    """Text goes on beside the calls of its attempt, and these beside each other."""
    assert shown(text("He"), written("{"), text("llo", 2), written("[", index=1), written("}", 1)) == [
        ("open", 1),
        ("text", "He", 2),
        ("InputOpened", 0, 1),
        ("input", 0, "{"),
        ("text", "llo", 5),
        ("InputOpened", 1, 1),
        ("input", 1, "["),
        ("input", 0, "}"),
    ]


@pytest.mark.parametrize("attempt", [2, 3])
def test_what_an_earlier_attempt_has_written_is_void_with_the_first_piece_of_the_next(attempt: int) -> None:
    """Whichever of text and calls that was, and whichever comes first now."""
    void_text, opened = [("open", 1), ("text", "He", 2), ("void", "He")], ("InputOpened", 0, attempt)
    assert shown(text("He"), text("A", attempt=attempt)) == [*void_text, ("open", attempt), ("text", "A", 1)]
    assert shown(text("He"), written("{", attempt=attempt)) == [*void_text, opened, ("input", 0, "{")]
    void_call = [("InputOpened", 0, 1), ("input", 0, "{"), ("InputVoid", 0, 1)]
    assert shown(written("{"), written("[", attempt=attempt)) == [*void_call, opened, ("input", 0, "[")]
    assert shown(written("{"), text("A", attempt=attempt)) == [*void_call, ("open", attempt), ("text", "A", 1)]


def test_each_call_of_an_earlier_attempt_is_void() -> None:
    both = shown(written("{"), written("[", index=1), written("(", attempt=2))
    assert both[4:] == [("InputVoid", 0, 1), ("InputVoid", 1, 1), ("InputOpened", 0, 2), ("input", 0, "(")]


def test_a_piece_that_comes_after_its_answer_changes_nothing() -> None:
    """Heartbeats are read later than stored events."""
    assert shown(ANSWER, text("Late"), written("{")) == shown(ANSWER) == [("StepAnswered",)]


def test_a_piece_that_was_seen_changes_nothing_and_one_that_was_seen_in_part_adds_its_rest() -> None:
    assert shown(text("Hello"), text("He"), text("llo, you", 2)) == [
        ("open", 1),
        ("text", "Hello", 5),
        ("text", ", you", 10),
    ]
    assert shown(written('{"a"'), written('{"'), written('"a":', 1)) == [
        ("InputOpened", 0, 1),
        ("input", 0, '{"a"'),
        ("input", 0, ":"),
    ]


def test_arguments_after_characters_that_are_missing_come_with_the_answer() -> None:
    """Those of a call that is known from a place in its middle as well."""
    call = {"id": "c0", "name": "find", "arguments": '{"a": 1}'}
    answer = {**ANSWER, "tool_calls": [call]}
    assert shown(written('{"a"'), written("1", 6), answer) == [
        ("InputOpened", 0, 1),
        ("input", 0, '{"a"'),
        ("StepAnswered",),
        ("input", 0, ": 1}"),
        ("call", "c0", True),
    ]
    assert shown(written(": 1", 4), answer) == [
        ("InputOpened", 0, 1),
        ("input", 0, ": 1"),
        ("StepAnswered",),
        ("input", 0, "}"),
        ("call", "c0", True),
    ]


def test_a_call_that_the_answer_has_otherwise_or_has_not_is_void() -> None:
    other = {**ANSWER, "tool_calls": [{"id": "c0", "name": "find", "arguments": "[]"}]}
    begun = [("InputOpened", 0, 1), ("input", 0, "{")]
    assert shown(written("{"), other) == [*begun, ("InputVoid", 0, 1), ("StepAnswered",), ("call", "c0", False)]
    assert shown(written("{"), ANSWER) == [*begun, ("InputVoid", 0, 1), ("StepAnswered",)]
    same_text = {**ANSWER, "tool_calls": [{"id": "other", "name": "find", "arguments": "{}"}]}
    assert shown(written("{"), same_text)[2:] == [("InputVoid", 0, 1), ("StepAnswered",), ("call", "other", False)]
