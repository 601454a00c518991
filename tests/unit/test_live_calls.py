"""What heartbeats say of an answer's calls while it is written: which number begins a call, and where each part stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan.activities.models.live_text import FIRST_AFTER, MAX_BYTES, MOST_PARTS, LiveTextHeartbeats
from mulligan.client.live_pace import LivePace
from mulligan.values import ToolCall
from mulligan.wire.event_types import LIVE_TEXT, PART_GAP, LiveCall, LiveText, TextCursor


class Heart:
    """Sends a heartbeat when a test says so."""

    def __init__(self) -> None:
        self.sent: list[LiveText] = []
        self.waited: list[float] = []
        self.cancelled = 0
        self._due: list[Any] = []

    def call_later(self, seconds: float, send: Any) -> Any:
        self.waited.append(seconds)
        self._due.append(send)

        def cancel() -> None:
            self.cancelled += 1
            self._due.clear()

        return SimpleNamespace(cancel=cancel)

    def send_live(self, live: dict[str, Any]) -> None:
        self.sent.append(LiveText.model_validate(json.loads(json.dumps(live[LIVE_TEXT]))))

    def beat(self) -> LiveText:
        self._due.pop()()
        return self.sent[-1]


DESCRIBED: list[list[tuple[str, str]]] = []


def describe(calls: Sequence[ToolCall]) -> LiveCall:
    DESCRIBED.append([(each.id, each.name) for each in calls])
    return LiveCall(index=len(calls) - 1, name=calls[-1].name, call_id=calls[-1].id)


def writing(sent: LiveText | None = None) -> tuple[Heart, LiveTextHeartbeats]:
    DESCRIBED.clear()
    heart = Heart()
    return heart, LiveTextHeartbeats(cast(Any, heart), LivePace(5), "0", 3, 1, sent, describe)


def write(live: LiveTextHeartbeats, *indexes: int, piece: str = "x") -> None:
    for index in indexes:
        live.write_call(index, f"id{index}", f"tool{index}", piece)


def shown(live: LiveText) -> list[tuple[int | None, int, int]]:
    """The call of each part, where its text begins in the whole, and how much of the call stands before it."""
    return [(part.call.index if part.call else None, part.at, part.start) for part in live.parts]


@pytest.mark.parametrize(
    ("indexes", "known"),
    [
        ((0,), [0]),
        ((1,), []),  # the first one was left out
        ((0, 2), [0]),
        ((0, 1, 2), [0, 1, 2]),
        ((0, 0, 1), [0, 1]),
        ((0, 2, 1, 2), [0, 1, 2]),
    ],
)
def test_a_number_that_is_known_or_the_next_one_is_a_call(indexes: tuple[int, ...], known: list[int]) -> None:
    heart, live = writing()
    live.write("text")
    write(live, *indexes)
    assert [index for index, _, _ in shown(heart.beat())] == known
    assert [len(each) - 1 for each in DESCRIBED] == known


def test_a_call_has_the_id_and_the_name_with_which_it_began() -> None:
    heart, live = writing()
    write(live, 0)
    live.write_call(0, "later", "other", "y")
    write(live, 1)
    heart.beat()
    assert DESCRIBED == [[("id0", "tool0")], [("id0", "tool0"), ("id1", "tool1")]]


def test_each_part_says_where_it_stands_in_the_whole_and_in_its_call() -> None:
    """Also where the text goes on after a call, and a call after the text."""
    heart, live = writing()
    live.write("ab")
    write(live, 0, piece="123")
    live.write("cde")
    write(live, 0, piece="4")
    last = heart.beat()
    gap = len(PART_GAP)
    assert last.text == f"ab{PART_GAP}123{PART_GAP}cde{PART_GAP}4"
    assert shown(last) == [(0, 2 + gap, 0), (None, 5 + 2 * gap, 2), (0, 8 + 3 * gap, 3)]
    assert len(DESCRIBED) == 1
    write(live, 0, piece="5")
    assert shown(heart.beat()) == shown(last)


def test_an_answer_has_so_many_parts_while_it_is_written() -> None:
    """What comes after them comes with the answer."""
    heart, live = writing()
    write(live, *range(MOST_PARTS + 2))
    last = heart.beat()
    assert (len(last.parts), last.parts[-1].call and last.parts[-1].call.index) == (MOST_PARTS, MOST_PARTS - 1)
    write(live, 0, piece="more")
    live.write("more")
    assert heart.beat().text == last.text
    write(live, MOST_PARTS - 1, piece="y")
    assert heart.beat().text == f"{last.text}y"


def test_a_heartbeat_has_the_end_of_what_is_written() -> None:
    heart, live = writing()
    live.write("é" * MAX_BYTES)
    last = heart.beat()
    assert (len(last.text), last.start, live.length) == (MAX_BYTES // 2, MAX_BYTES // 2, MAX_BYTES)
    assert (last.conversation, last.step, last.attempt) == ("0", 3, 1)


def test_what_continues_an_answer_counts_on() -> None:
    """The text alone: where a stream was opened again."""
    before = LiveText(conversation="0", step=3, attempt=1, start=5, text="hello")
    heart, live = writing(before)
    assert live.length == 10
    live.write(" you")
    last = heart.beat()
    assert (last.start, last.text, live.length) == (5, "hello you", 14)
    write(live, 0)
    live.write("!")
    assert [each[2] for each in shown(heart.beat())] == [0, 14]


def test_the_first_piece_is_sent_soon_and_the_next_ones_at_their_pace() -> None:
    heart, live = writing()
    live.write("a")
    live.write("b")
    heart.beat()
    live.write("c")
    assert heart.waited == [FIRST_AFTER, 5]
    fast = LiveTextHeartbeats(cast(Any, heart), LivePace(0.1), "0", 1, 1)
    fast.write("a")
    assert heart.waited[-1] == 0.1


def test_the_end_of_an_answer_sends_what_was_not_sent_yet() -> None:
    heart, live = writing()
    live.flush()
    assert heart.sent == []
    live.write("a")
    live.flush()
    live.flush()
    assert ([each.text for each in heart.sent], heart.cancelled) == (["a"], 1)


def test_half_a_character_waits_for_its_other_half() -> None:
    heart, live = writing()
    live.write("a\ud83d")
    assert heart.beat().text == "a"
    live.write("\ude48")
    assert heart.beat().text == "a🙈"
    live.write("\ude48\0")
    assert heart.beat().text == "a🙈\ufffd\ufffd"


def test_the_place_in_a_stream_is_sent_with_the_text_before_it() -> None:
    heart, live = writing()
    live.cursor = TextCursor(sequence=7)
    live.write("abc")
    cursor = heart.beat().cursor
    assert cursor is not None
    assert (cursor.sequence, cursor.length) == (7, 3)
