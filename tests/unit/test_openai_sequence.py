"""The numbers and texts of OpenAI's events are the same on every replica, whatever it has seen live."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from mulligan.client.event_position import Position
from mulligan.serve.openai_api.chat_text import VOID_NOTE, ChatText
from mulligan.serve.openai_api.response_events import ResponseEvents, ResponseHead
from mulligan.serve.openai_api.sequence import (
    DELTA,
    LAST_SLOT,
    MOST_NUMBER,
    ReadUpTo,
    number_of_live,
    number_of_stored,
    read_up_to,
)
from mulligan.values import ErrorInfo, Usage
from mulligan.wire.event_types import Answered, Event, ModelFallback, TextDelta, TextVoid

AT = datetime(2026, 11, 22, tzinfo=UTC)
offsets, attempts, lengths = st.integers(0, 2**20 - 2), st.integers(1, 2_000), st.integers(1, 2**21 - 200)


@given(offsets, attempts, lengths)
def test_a_number_says_what_was_read(offset: int, attempt: int, seen: int) -> None:
    """And never exceeds what JavaScript reads exactly."""
    number = number_of_live(Position(offset + 1, attempt, seen), DELTA, seen)
    assert read_up_to(number) == ReadUpTo(offset, attempt, seen)
    assert read_up_to(number).token == Position(offset + 1, attempt, seen).token
    assert read_up_to(number_of_stored(offset, LAST_SLOT)) == ReadUpTo(offset)
    assert number < MOST_NUMBER


@given(offsets, attempts, lengths)
def test_numbers_grow_with_the_run(offset: int, attempt: int, seen: int) -> None:
    position = Position(offset + 1, attempt, seen)
    following = Position(offset + 1, attempt + 1, 0)
    numbers = [
        number_of_stored(offset, LAST_SLOT),
        *(number_of_live(position, slot) for slot in range(DELTA)),
        number_of_live(position, DELTA, seen),
        number_of_live(position, DELTA, seen, is_call=True),
        number_of_live(position, DELTA, seen + 1, is_call=True),
        *(number_of_live(following, slot) for slot in range(DELTA)),
        number_of_stored(offset + 1, 0),
    ]
    assert numbers == sorted(set(numbers))


def delta(text: str, start: int, attempt: int = 1) -> Event:
    return TextDelta(at=AT, step=1, attempt=attempt, start=start, text=text)


def answered(text: str) -> Event:
    return Answered(at=AT, offset=3, step=1, text=text, tool_calls=[], usage=Usage())


def fallback() -> Event:
    error = ErrorInfo(kind="ModelUnavailableError", message="down")
    return ModelFallback(at=AT, offset=2, step=1, model="openai-chat:other", error=error)


def translated(*events: Event) -> list[tuple[str, str]]:
    """The deltas, and how each item ends."""
    response = ResponseEvents(ResponseHead("resp_1", "seller", 0))
    found = []
    for number, event in enumerate(events):
        for each in response.translate(event, Position(2, getattr(event, "attempt", 0), number)):
            if each["type"] == "response.output_text.delta":
                found.append(("delta", each["delta"]))
            elif each["type"] == "response.output_item.done":
                found.append((each["item"]["status"], each["item"]["content"][0]["text"]))
    return found


def test_a_client_that_comes_late_gets_the_text_once_and_whole() -> None:
    """Where live text begins in the middle, the rest comes with the answer."""
    assert translated(delta("llo", 2), answered("Hello")) == [("delta", "Hello"), ("completed", "Hello")]
    assert translated(delta("He", 0), delta("o", 4), answered("Hello")) == [
        ("delta", "He"),
        ("delta", "llo"),
        ("completed", "Hello"),
    ]


def test_text_that_another_attempt_replaces_is_incomplete() -> None:
    """Whether its end was seen, or only that the answer begins otherwise; or the next model is called."""
    void = [("delta", "He"), ("incomplete", "He"), ("delta", "Bye"), ("completed", "Bye")]
    assert translated(delta("He", 0), TextVoid(at=AT, step=1, attempt=1), answered("Bye")) == void
    assert translated(delta("He", 0), answered("Bye")) == void
    assert translated(delta("He", 0), fallback(), answered("Bye")) == void
    assert translated(delta("He", 0), delta("Bye", 0, attempt=2), answered("Bye")) == void
    assert translated(delta("He", 0), answered("")) == void[:2]


def test_a_chat_says_that_text_is_void() -> None:
    chat = ChatText("run")
    pieces = [piece for event in (delta("He", 0), answered("Bye")) for piece in chat.pieces(event)]
    assert "".join(pieces) == f"He{VOID_NOTE}Bye"
