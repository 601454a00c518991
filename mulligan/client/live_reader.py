"""Decides what a watcher sees of a model's words, whatever brought them, and in whatever order it came.

Three things say something of a run's model call: the query, which names the step that the model writes; the description,
with the text of heartbeats; and the frames of the live channel. The rules: words are shown only of a call that a query said
is open, which began after the call was heard of, so stored events come first; attempts and places never fall; words that
come twice are shown once; a gap is never skipped while the worker still has what is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from mulligan.client.event_position import Position
from mulligan.wire.event_types import (
    PART_GAP,
    LiveCall,
    LivePart,
    LiveText,
    TextDelta,
    TextVoid,
    ToolInputDelta,
)
from mulligan.wire.live_frames import MOST_CHARS, CallEnd, CallOpen, CallPlace, News, WorkerFrame, Written

LEASE = 3.0
"""Seconds for which a call is known to be written here after a frame of its worker, which repeats them each second. A worker
that is frozen keeps its connection, so the connection says nothing."""
_MOST_CONVERSATIONS = 16
"""Agents of one workflow whose calls are remembered."""
_ROUNDING = timedelta(milliseconds=2)
"""Times in events are rounded to milliseconds."""


@dataclass(eq=False)
class _Heard:
    """The newest attempt of a model call that was heard of, in one conversation."""

    place: CallPlace
    text: LiveText | None = None
    at: datetime | None = None
    source: object = None
    """Who sends its frames."""
    lease: float = 0.0
    """Until when its worker is known to send what it writes, by the clock of the caller."""
    is_open: bool = False
    """Whether a query that began after it was heard of has said that the step is being written."""

    @property
    def end(self) -> int:
        """How many characters of it are known, with those that came before."""
        return self.text.start + len(self.text.text) if self.text is not None else 0


class LiveReader:
    """What is known of the words of one run's agent. Nothing here waits, and nothing is sent."""

    def __init__(self, conversation: str | None = None) -> None:
        """`conversation`: the number of the agent; None: that of which the queries speak."""
        self.run_id = ""
        """The workflow run, by the last description."""
        self.writing: dict[str, Any] | None = None
        """The open call, by the last query: {`conversation`, `step`, `at`, and `attempt` if the workflow counts it}."""
        self.has_news = False
        """Whether the run may have new stored events."""
        self._since = 0.0
        """When the step being written began, in milliseconds."""
        self._conversation = conversation
        self._heard: dict[str, _Heard] = {}
        self._refused: dict[str, CallPlace] = {}
        """The newest call of each conversation that no query has shown as open: its frames are no news."""
        self._other_runs: set[str] = set()
        """Runs that were heard of, and that no description has shown yet: they may be newer."""
        self._asked_runs: set[str] = set()
        self._refused_runs: deque[str] = deque(maxlen=_MOST_CONVERSATIONS)
        self._news_source: object = None

    # What comes in.

    def take_frame(self, frame: WorkerFrame, source: object, now: float) -> bool:
        """Take a frame of the run. Returns False if something before it is missing: then ask the source for what it has."""
        if isinstance(frame, News):
            if self._is_of_run(frame.run):
                self.has_news, self._news_source = True, source
            return True
        heard = self._heard_of(frame.place)
        if heard is None:
            return True
        heard.source = source
        heard.lease = 0.0 if isinstance(frame, CallEnd) else now + LEASE
        if isinstance(frame, Written):
            return _join(heard, frame.live, datetime.fromtimestamp(frame.at, UTC), is_whole=frame.is_whole)
        return not isinstance(frame, CallOpen) or frame.place.start <= heard.end

    def lose(self, source: object) -> None:
        """A source of frames is gone."""
        if self._news_source is source:
            self._news_source = None
        for heard in self._heard.values():
            if heard.source is source:
                heard.source, heard.lease = None, 0.0

    def asks_for_run(self) -> None:
        """A description is asked for: it decides which of the runs that were heard of is the newest."""
        self._asked_runs, self._other_runs = self._other_runs, set()

    def take_run(self, run_id: str) -> None:
        """A description shows the workflow run that is the newest one now."""
        self._refused_runs.extend(self._asked_runs - {run_id})
        if self.run_id not in ("", run_id):
            self._refused_runs.append(self.run_id)
        self.run_id, self._asked_runs = run_id, set()
        self._other_runs.discard(run_id)
        self._heard = {key: each for key, each in self._heard.items() if each.place.run not in self._refused_runs}

    def take_heartbeat(self, place: CallPlace, text: LiveText | None, at: datetime) -> None:
        """A description shows an attempt of a call, and what it has written, if that is known.

        The last query began after this description, or nothing has happened in the run between them.
        """
        heard = self._heard_of(place)
        if heard is None:
            return
        heard.is_open = heard.is_open or self._matches(place)
        if text is not None and text.attempt == place.attempt:
            _join(heard, text, at, is_whole=True)

    def asks(self) -> list[object]:
        """What the next query decides: call it before the query is sent, and give it to `take_query`."""
        self.has_news = False
        return list(self._heard.values())

    def take_query(self, writing: dict[str, Any] | None, asked: Sequence[object] = ()) -> None:
        """A query has said what is being written. `asked`: what had been heard of before it was sent."""
        self.writing = writing
        if writing is not None:
            self._conversation = writing["conversation"]
            self._since = (datetime.fromisoformat(writing["at"]) - _ROUNDING).timestamp() * 1000
        for conversation, heard in list(self._heard.items()):
            if heard not in asked or heard.place.run != self.run_id:
                continue
            if self._matches(heard.place):
                heard.is_open = True
            elif self._conversation in (None, conversation):
                self._refused[conversation] = heard.place
                del self._heard[conversation]

    # What follows from it.

    def may_be_open(self, scheduled: int) -> bool:
        """Whether a call that was scheduled at a time (milliseconds) may be the one that the last query said is open."""
        return self.writing is not None and scheduled >= self._since

    @property
    def place(self) -> CallPlace | None:
        """The newest call, and how much of it is known."""
        newest = max(self._heard.values(), key=lambda each: each.place.order, default=None)
        return newest.place.model_copy(update={"start": newest.end}) if newest is not None else None

    @property
    def needs_query(self) -> bool:
        """Whether a call was heard of that may have begun since the last query."""
        return any(
            not each.is_open and each.place.run == self.run_id and self._conversation in (None, conversation)
            for conversation, each in self._heard.items()
        )

    @property
    def needs_run(self) -> bool:
        """Whether a run was heard of that may be newer than the one that was described last."""
        return bool(self._other_runs)

    def is_covered(self, now: float) -> bool:
        """Whether the run's worker says what happens: while a model writes, by the lease of its call."""
        if self.writing is None:
            return self._news_source is not None
        return self.leased_until > now

    @property
    def leased_until(self) -> float:
        """Until when the worker of the open call is known to send what it writes."""
        heard = self._open()
        return heard.lease if heard is not None else 0.0

    def unseen(self, read: Position) -> Iterator[tuple[TextDelta | ToolInputDelta | TextVoid, Position]]:
        """What a watcher at a position has not seen of the open call, each with the position after it."""
        heard = self._open()
        if heard is None or heard.place.attempt < read.attempt:
            return
        step, attempt = heard.place.step, heard.place.attempt
        if read.seen and attempt > read.attempt:
            void, read = (
                TextVoid(at=datetime.now(UTC), step=step, attempt=read.attempt),
                Position(read.next, attempt, 0),
            )
            yield void, read
        if heard.text is not None and heard.at is not None:
            for event, seen in live_events(heard.text, read.seen, step, heard.at):
                yield event, Position(read.next, attempt, seen)

    def _open(self) -> _Heard | None:
        """The call whose words may be shown."""
        heard = self._heard.get(self.writing["conversation"]) if self.writing is not None else None
        return heard if heard is not None and heard.is_open and self._matches(heard.place) else None

    def _matches(self, place: CallPlace) -> bool:
        """Whether a call is the one that the last query said is being written, or a later one of its step."""
        writing = self.writing
        if writing is None or (place.run, place.conversation) != (self.run_id, writing["conversation"]):
            return False
        # The workflow counts the attempts of a background response; Temporal counts the attempts of other calls.
        is_attempt = writing.get("attempt") in (None, place.attempt)
        return is_attempt and place.step == writing["step"] and self.may_be_open(place.scheduled)

    def _is_of_run(self, run_id: str) -> bool:
        """Whether a frame is of the newest run that is known. One of an unknown run may be of a newer one."""
        is_unknown = run_id != self.run_id and run_id not in (*self._refused_runs, *self._asked_runs)
        if is_unknown and len(self._other_runs) < _MOST_CONVERSATIONS:
            self._other_runs.add(run_id)
        return run_id == self.run_id

    def _heard_of(self, place: CallPlace) -> _Heard | None:
        """What is known of a call; None if a later one is known, or a query has said that it is not open."""
        self._is_of_run(place.run)
        known, refused = self._heard.get(place.conversation), self._refused.get(place.conversation)
        if place.run in self._refused_runs or (refused and refused.run == place.run and place.order <= refused.order):
            return None
        if known is not None and (known.place.order, known.place.run) == (place.order, place.run):
            return known if known.place.step == place.step else None
        if known is not None and known.place.order >= place.order:
            return None
        heard = self._heard[place.conversation] = _Heard(place.model_copy(update={"start": 0}))
        if len(self._heard) > _MOST_CONVERSATIONS:
            oldest = min(self._heard.values(), key=lambda each: each.place.order)
            del self._heard[oldest.place.conversation]
        return heard


def _join(heard: _Heard, new: LiveText, at: datetime, *, is_whole: bool) -> bool:
    """Add what a call has written to what is known of it. Returns False if something between them is missing."""
    old, end = heard.text, new.start + len(new.text)
    if old is None:
        if new.start and not is_whole:
            return False
        heard.text, heard.at = new, at
        return True
    if end <= heard.end:
        return True
    if new.start > heard.end:
        if is_whole:
            heard.text, heard.at = new, at
        return is_whole
    if new.start > old.start:
        text = old.text + new.text[heard.end - new.start :]
        cut = max(0, len(text) - MOST_CHARS)
        first = new.parts[0].at if new.parts else end + 1
        parts = [*(each for each in old.parts if each.at < first), *new.parts]
        new = new.model_copy(update={"start": old.start + cut, "text": text[cut:], "parts": parts})
    heard.text, heard.at = new, at
    return True


def live_events(text: LiveText, seen: int, step: int, at: datetime) -> Iterator[tuple[TextDelta | ToolInputDelta, int]]:
    """What a reader has not seen yet, each event with how many characters were seen after it.

    Args:
        text: What the model has written.
        seen: How many characters of the same attempt the reader has seen.
        step: The number of the step.
        at: When it was sent.
    """
    end = LivePart(at=text.start + len(text.text) + len(PART_GAP), start=0)
    for part, following in pairwise([LivePart(at=0, start=0), *text.parts, end]):
        if part.call is not None and part.start == 0 and part.at > seen:
            yield _event(text, part, part.at, "", step, at), part.at
        first, last = max(part.at, seen, text.start), following.at - len(PART_GAP)
        if piece := text.text[first - text.start : max(0, last - text.start)]:
            yield _event(text, part, first, piece, step, at), first + len(piece)


def _event(
    text: LiveText, part: LivePart, first: int, piece: str, step: int, at: datetime
) -> TextDelta | ToolInputDelta:
    call: LiveCall | None = part.call
    written = {"at": at, "step": step, "attempt": text.attempt, "start": part.start + first - part.at, "text": piece}
    return TextDelta(**written) if call is None else ToolInputDelta(**written, **call.model_dump())
