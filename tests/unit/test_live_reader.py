"""What a watcher sees of a model's words, from frames, heartbeats and queries in any order: each word once, and in its place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from mulligan.client.event_position import Position
from mulligan.client.live_reader import LEASE, LiveReader
from mulligan.wire.event_types import PART_GAP, LiveCall, LivePart, LiveText
from mulligan.wire.live_frames import MOST_CHARS, CallEnd, CallOpen, CallPlace, News, WorkerFrame, Written
from tests.support.examples import examples

AT = datetime(2026, 11, 30, tzinfo=UTC)


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def place(start: int = 0, **changed: Any) -> CallPlace:
    known = {"workflow": "w", "run": "r", "scheduled": 1_010, "attempt": 1, "conversation": "0", "step": 1}
    return CallPlace(**{**known, **changed, "start": start})


def written(text: str, start: int = 0, *, is_whole: bool = False, **changed: Any) -> Written:
    return Written(place=place(start, **changed), at=1.0, text=text, is_whole=is_whole)


def writing(step: int = 1, at: int = 1_000, conversation: str = "0", **more: Any) -> dict[str, Any]:
    return {"step": step, "at": iso(at), "conversation": conversation, **more}


def reader(opened: dict[str, Any] | None = None) -> LiveReader:
    made = LiveReader()
    made.take_run("r")
    made.take_query(opened)
    return made


def ask(made: LiveReader, opened: dict[str, Any] | None) -> None:
    made.take_query(opened, made.asks())


def shown(made: LiveReader, read: Position = Position()) -> str:  # noqa: B008 - it is a value
    return "|".join("void" if event.type == "text_void" else event.text for event, _ in made.unseen(read))


def test_words_wait_for_a_query_that_began_after_their_call_was_heard_of() -> None:
    """The query before may have seen the call before `model_fallback`, which looks like this one."""
    made = reader(writing())
    asked = made.asks()
    made.take_frame(written("Hello"), "w1", 0)
    made.take_query(writing(), asked)
    assert made.needs_query
    assert shown(made) == ""
    ask(made, writing())
    assert not made.needs_query
    assert shown(made) == "Hello"
    assert made.is_covered(LEASE - 1)
    assert not made.is_covered(LEASE + 1)


@pytest.mark.parametrize(
    "other",
    [{"run": "s"}, {"conversation": "1"}, {"step": 2}, {"scheduled": 900}],
    ids=["run", "conversation", "step", "before"],
)
def test_words_of_another_call_are_not_shown(other: dict[str, Any]) -> None:
    """Whatever else is open. It is asked for once, not with each frame."""
    made = reader(writing())
    made.take_frame(written("Hello", **other), "w1", 0)
    made.asks_for_run()
    made.take_run("r")
    ask(made, writing())
    assert shown(made) == ""
    for _ in range(3):
        made.take_frame(CallOpen(place=place(**other)), "w1", 0)
        made.take_frame(written("Hello", **other), "w1", 0)
    assert not made.needs_query
    assert not made.needs_run
    assert shown(made) == ""
    made.take_frame(written("Mine", scheduled=1_020), "w1", 0)
    ask(made, writing())
    assert shown(made) == "Mine"


def test_a_gap_is_asked_for_and_never_skipped() -> None:
    """But where the worker has no more, as the answer is longer than what it keeps."""
    made = reader(writing())
    assert made.take_frame(CallOpen(place=place()), "w1", 0)
    ask(made, writing())
    assert not made.take_frame(written("lo", 3), "w1", 0)
    assert shown(made) == ""
    assert made.take_frame(written("Hel"), "w1", 0)
    assert not made.take_frame(written("!", 5), "w1", 0)
    assert not made.take_frame(CallOpen(place=place(5)), "w1", 0)
    assert made.take_frame(written("ello", 1), "w1", 0)
    assert made.take_frame(written("lo!", 3), "w1", 0)
    assert (shown(made), shown(made, Position(0, 1, 4))) == ("Hello!", "o!")
    assert made.place == place(6)
    assert made.take_frame(written("tail", 50_000, is_whole=True), "w1", 0)
    assert [(event.start, event.text) for event, _ in made.unseen(Position(0, 1, 6))] == [(50_000, "tail")]  # type: ignore[union-attr]


def test_what_is_kept_is_bounded_and_ends_with_the_newest_words() -> None:
    made = reader(writing())
    at = 0
    for number in range(8):
        made.take_frame(written(str(number) * 5_000, at), "w1", 0)
        at += 5_000
    ask(made, writing())
    assert len(shown(made)) == MOST_CHARS
    assert shown(made, Position(0, 1, at - 2)) == "77"


def test_attempts_never_fall() -> None:
    """Neither in frames of a worker that wakes, nor in an older description; also where nothing of the newer one was seen."""
    made = reader(writing())
    made.take_frame(written("old"), "w1", 0)
    ask(made, writing())
    assert shown(made) == "old"
    made.take_frame(CallOpen(place=place(attempt=2, scheduled=1_500)), "w2", 0)
    ask(made, writing())
    assert shown(made, Position(0, 1, 3)) == "void"
    made.take_frame(written("old and more"), "w1", 0)
    made.take_heartbeat(place(), LiveText(conversation="0", step=1, attempt=1, start=0, text="old and"), AT)
    assert shown(made, Position(0, 2, 0)) == ""
    made.take_frame(written("new", attempt=2, scheduled=1_500), "w2", 0)
    assert shown(made, Position(0, 2, 0)) == "new"
    late = reader(writing())
    late.take_heartbeat(place(), LiveText(conversation="0", step=1, attempt=1, start=0, text="old"), AT)
    assert shown(late, Position(0, 2, 0)) == ""


def test_an_attempt_without_words_voids_those_before_it() -> None:
    made = reader(writing())
    text = LiveText(conversation="0", step=1, attempt=1, start=0, text="old")
    made.take_heartbeat(place(attempt=2, scheduled=1_500), text, AT)
    assert [(event.type, event.attempt, after) for event, after in made.unseen(Position(4, 1, 2))] == [
        ("text_void", 1, Position(4, 2, 0))
    ]


def test_a_lease_ends_with_its_call_its_connection_and_its_time() -> None:
    made = reader(writing())
    made.take_frame(CallOpen(place=place()), "w1", 0)
    ask(made, writing())
    assert made.is_covered(1)
    made.lose("another")
    assert made.is_covered(1)
    made.lose("w1")
    assert not made.is_covered(1)
    made.take_frame(CallOpen(place=place()), "w1", 1)
    assert made.is_covered(1 + LEASE - 0.1)
    made.take_frame(CallEnd(place=place()), "w1", 1)
    assert not made.is_covered(1)


def test_news_is_of_the_run_that_is_described() -> None:
    """News of an unknown run asks for a description; of a run that is over it is none."""
    made = reader()
    made.take_frame(News(workflow="w", run="r"), "w1", 0)
    assert made.has_news
    assert made.is_covered(0)
    ask(made, None)
    assert not made.has_news
    made.take_frame(News(workflow="w", run="s"), "w1", 0)
    assert (made.has_news, made.needs_run) == (False, True)
    made.asks_for_run()
    made.take_run("s")
    assert not made.needs_run
    made.take_frame(News(workflow="w", run="r"), "w1", 0)
    assert (made.has_news, made.needs_run) == (False, False)


def test_a_background_response_is_read_by_polls_whose_attempt_the_workflow_counts() -> None:
    made = reader(writing(attempt=2))
    made.take_frame(written("old", attempt=1), "w1", 0)
    made.take_frame(written("new", attempt=2, scheduled=2_000), "w1", 0)
    ask(made, writing(attempt=2))
    assert shown(made) == "new"
    made.take_frame(written("ewer", 3, attempt=2, scheduled=4_000, is_whole=True), "w1", 0)
    ask(made, writing(attempt=2))
    assert shown(made, Position(0, 2, 3)) == "ewer"


def test_what_is_remembered_of_other_runs_and_conversations_is_bounded() -> None:
    made = reader(writing())
    for number in range(1_000):
        made.take_frame(written("x", run=f"other-{number}", conversation=str(number)), "w1", 0)
    assert len(made._heard) <= 20
    assert len(made._other_runs) <= 20


# A random schedule.


@dataclass
class Call:
    """An attempt of a model call as its worker makes it."""

    place: CallPlace
    text: str = ""
    parts: list[LivePart] = field(default_factory=list)
    after: int = 0
    """How many events were stored before it began."""
    kept: int = 10_000
    """How many characters of the end the worker keeps."""

    def write(self, chance: random.Random) -> None:
        if self.text and len(self.parts) < 4 and chance.random() < 0.1:
            self.text += PART_GAP
            index = len(self.parts)
            self.parts.append(
                LivePart(at=len(self.text), start=0, call=LiveCall(index=index, name="t", call_id=f"c{index}"))
            )
        seed = f"{self.place.conversation}{self.place.step}{self.place.scheduled}.{self.place.attempt}:"
        for _ in range(chance.randint(1, 12)):
            self.text += seed[len(self.text) % len(seed)]

    def live(self) -> LiveText:
        start = max(0, len(self.text) - self.kept)
        where = {"conversation": self.place.conversation, "step": self.place.step, "attempt": self.place.attempt}
        return LiveText(**where, start=start, text=self.text[start:], parts=list(self.parts))

    def of(self, kind: str, call_id: str) -> str:
        """Its text, or the arguments of one of its calls."""
        starts = [0, *(part.at for part in self.parts), len(self.text) + len(PART_GAP)]
        number = 0 if kind == "text_delta" else 1 + int(call_id[1:])
        return self.text[starts[number] : starts[number + 1] - len(PART_GAP)] if number < len(starts) - 1 else ""

    def frame(self, have: int) -> Written:
        live = self.live()
        start = max(live.start, min(have, len(self.text)))
        parts = live.parts
        for number, part in reversed(list(enumerate(live.parts))):
            if part.at <= start and start > live.start:
                parts = live.parts[number:]
                break
        return Written(
            place=self.place.model_copy(update={"start": start}),
            at=1.0,
            text=live.text[start - live.start :],
            parts=parts,
            is_whole=start == live.start,
        )


class Run:
    """Two agents in one workflow, whose calls are retried, fail and fall back; the run continues as new, or is reset."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.clock, self.run, self.length = chance, 1_000_000, "run-0", 0
        self.stored: dict[str, list[tuple[str, int]]] = {"0": [], "1": []}
        self.writing: dict[str, dict[str, Any] | None] = {"0": None, "1": None}
        self.steps = {"0": 0, "1": 0}
        self.calls: dict[str, Call | None] = {"0": None, "1": None}
        self.zombies: list[Call] = []
        self.made: list[Call] = []
        self.kept = chance.choice([40, 10_000])
        self.frames: list[tuple[WorkerFrame, str]] = []
        self.sent: dict[int, int] = {}
        self.has_channel = chance.random() < 0.9

    def tick(self) -> int:
        self.clock += self.chance.randint(3, 50)
        return self.clock

    def send(self, frame: WorkerFrame) -> None:
        if self.has_channel:
            self.frames.append((frame, "worker"))

    def schedule(self, conversation: str) -> None:
        """A workflow task begins a model call."""
        began = self.tick()
        self.writing[conversation] = writing(self.steps[conversation], began, conversation)
        self.length += 3
        self.send(News(workflow="w", run=self.run))
        self.begin(conversation, 1)

    def begin(self, conversation: str, attempt: int) -> None:
        if (old := self.calls[conversation]) is not None and self.chance.random() < 0.5:
            self.zombies.append(old)
        where: dict[str, Any] = {"attempt": attempt, "conversation": conversation, "run": self.run}
        where["step"] = self.steps[conversation]
        self.calls[conversation] = call = Call(
            place(scheduled=self.tick(), **where), after=len(self.stored[conversation]), kept=self.kept
        )
        self.made.append(call)
        self.send(CallOpen(place=call.place))

    def store(self, conversation: str, kind: str) -> None:
        self.stored[conversation].append((kind, self.steps[conversation]))
        self.length += 3

    def act(self) -> None:
        conversation = self.chance.choice("01")
        call = self.calls[conversation]
        move = self.chance.random()
        if call is None:
            self.steps[conversation] += 1
            self.store(conversation, "step_started")
            self.schedule(conversation)
        elif move < 0.6:
            call.write(self.chance)
            self.publish(call)
        elif move < 0.7:
            self.begin(conversation, call.place.attempt + 1)
        elif move < 0.85:
            self.store(conversation, "model_fallback")
            self.schedule(conversation)
            if (other := self.calls[conversation]) is not None and self.chance.random() < 0.7:
                for _ in range(self.chance.randint(1, 6)):  # more, perhaps, than the call before it had
                    other.write(self.chance)
                self.publish(other)
        elif move < 0.93:
            self.send(CallEnd(place=call.place))
            self.store(conversation, "answered")
            self.writing[conversation] = None
            self.calls[conversation] = None
            if self.chance.random() < 0.3 and self.calls["0"] is None and self.calls["1"] is None:
                self.run = f"run-{self.tick()}"
                self.length = 1
            self.send(News(workflow="w", run=self.run))
        elif self.zombies:
            zombie = self.chance.choice(self.zombies)
            zombie.write(self.chance)
            self.publish(zombie)
            self.send(CallOpen(place=zombie.place))

    def publish(self, call: Call) -> None:
        have = self.sent.get(id(call), 0) if self.chance.random() < 0.8 else self.chance.randint(0, 60)
        self.send(call.frame(have))
        self.sent[id(call)] = len(call.text)


class Watcher:
    """A follower's moves, one after the other; frames come at any time between them, also while a query is under way."""

    def __init__(self, run: Run, chance: random.Random) -> None:
        self.run, self.chance, self.reader = run, chance, LiveReader()
        self.read, self.checked = Position(), ("", -1)
        self.seen: list[tuple[str, int, int, int, str, str]] = []
        """Of each event: its type, step, attempt, start, text, and the call's id; of a stored one its type and step."""

    def frames_come(self) -> None:
        for _ in range(self.chance.randint(0, 4)):
            if not self.run.frames:
                return
            number = 0 if self.chance.random() < 0.8 else self.chance.randrange(len(self.run.frames))
            frame, source = self.run.frames.pop(number)  # now and then out of their order
            times = self.chance.choices([0, 1, 2], [1, 8, 1])[0]
            for _ in range(times):
                if not self.reader.take_frame(frame, source, 0):
                    for call in [*self.run.calls.values(), *self.run.zombies]:
                        if call is not None:
                            self.run.frames.append((call.frame(0), source))

    def meanwhile(self) -> None:
        for _ in range(self.chance.randint(0, 3)):
            self.run.act()
            self.frames_come()

    def query(self) -> None:
        asked = self.reader.asks()
        self.meanwhile()
        answer = self.run.writing["0"], list(self.run.stored["0"])
        self.meanwhile()
        self.reader.take_query(answer[0], asked)
        for kind, step in answer[1][self.read.next :]:
            ends = kind in ("step_started", "answered", "model_fallback")
            self.read = Position(self.read.next + 1, *((0, 0) if ends else self.read[1:]))
            self.seen.append((kind, step, 0, 0, "", ""))

    def look(self) -> None:
        """A description, a query if anything has changed since the last one, and the heartbeats of the description."""
        self.reader.asks_for_run()
        self.meanwhile()
        run, described = self.run, (self.run.run, self.run.length)
        calls = [call for call in run.calls.values() if call is not None]
        beats = [(call.place, call.live() if call.text else None) for call in calls]
        self.meanwhile()
        self.reader.take_run(described[0])
        if described != self.checked:
            self.query()
            self.checked = described
        opened = self.reader.writing
        for where, live in beats:
            # The follower gives those that match the open call.
            if opened and where.conversation == opened["conversation"] and self.reader._matches(where):
                self.reader.take_heartbeat(where, live, AT)
        self.show()

    def move(self) -> None:
        self.meanwhile()
        if self.chance.random() < 0.3:
            self.look()
        elif self.reader.has_news or self.reader.needs_query:
            self.query()
        self.show()

    def show(self) -> None:
        for event, after in self.reader.unseen(self.read):
            assert after >= self.read
            self.read = after
            start = getattr(event, "start", 0)
            self.seen.append(
                (
                    event.type,
                    event.step,
                    event.attempt,
                    start,
                    getattr(event, "text", ""),
                    getattr(event, "call_id", ""),
                )
            )


def spans(watcher: Watcher) -> Iterator[tuple[int, list[tuple[str, int, int, int, str, str]]]]:
    """What was shown between two stored events, for each attempt, and how many events were stored before."""
    number = 0
    current: list[tuple[str, int, int, int, str, str]] = []
    for each in watcher.seen:
        if each[0] in ("step_started", "answered", "model_fallback", "text_void"):
            yield number, current
            number, current = number + (each[0] != "text_void"), []
        else:
            current.append(each)
    yield number, current


@pytest.mark.parametrize("seed", range(examples(100)))
def test_any_schedule_shows_each_word_once_in_order_of_its_own_call_and_loses_none(seed: int) -> None:
    """Words say which call wrote them. Where the worker keeps few, a watcher may miss some, and sees where."""
    chance = random.Random(seed)
    run = Run(chance)
    watcher = Watcher(run, chance)
    for _ in range(60):
        watcher.move()
    stored = [(each[0], each[1]) for each in watcher.seen if each[0] in ("step_started", "answered", "model_fallback")]
    assert stored == run.stored["0"][: len(stored)]
    for number, span in spans(watcher):
        ends: dict[str, int] = {}
        for kind, _, _, start, text, call_id in span:
            end = ends.get(kind + call_id, 0)
            assert start == end or (start > end and run.kept == 40), "nothing twice, nothing lost"
            ends[kind + call_id] = start + len(text)
        own = [call for call in run.made if (call.place.conversation, call.after) == ("0", number)]
        assert not span or any(
            all(
                call.place.attempt == attempt and call.of(kind, call_id)[start : start + len(text)] == text
                for kind, _, attempt, start, text, call_id in span
            )
            for call in own
        ), "of one attempt of its own call"
    # All that is written stands in the end.
    watcher.meanwhile = lambda: None  # type: ignore[method-assign]
    run.frames.clear()
    watcher.look()
    call = run.calls["0"]
    if call is not None and call.text:
        assert watcher.read[1:] == (call.place.attempt, len(call.text))
    else:
        assert watcher.read.next == len(run.stored["0"])
