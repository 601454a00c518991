"""Send what the model has written so far, in heartbeats and by the live channel, to clients that follow the run.

History has none of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

from temporalio import activity

from mulligan.activities.heartbeat import Heartbeat
from mulligan.client.live_pace import LivePace
from mulligan.live.publisher import Publisher
from mulligan.values import ToolCall, well_formed
from mulligan.wire.event_types import LIVE_TEXT, PART_GAP, LiveCall, LivePart, LiveText, TextCursor
from mulligan.wire.live_frames import CallPlace

FIRST_AFTER = 0.2
"""Seconds, at most, from the first piece of an answer to the heartbeat that carries it: a person sees that it begins."""
MAX_BYTES = 16 * 1024
"""Bytes of the end of what is written that a heartbeat carries: more than any model writes between two polls of a client."""
MOST_PARTS = 64
"""Parts of an answer that are sent while they are written: of each, every heartbeat says where it begins."""


class LiveTextHeartbeats:
    """What is written of one answer: its text, and the arguments of its calls.

    Args:
        heartbeat: Sends it.
        pace: How long it is from a later piece to the heartbeat that carries it. An answer that is complete before the
            first heartbeat costs none.
        conversation: The conversation's key.
        step: The step's number.
        attempt: The attempt of the model call.
        sent: What was sent before, if this continues it: text alone.
        describe: Says what is known of the last of some calls, when the first heartbeat with it is sent: most answers are
            complete before that.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        pace: LivePace,
        conversation: str,
        step: int,
        attempt: int,
        sent: LiveText | None = None,
        describe: Callable[[Sequence[ToolCall]], LiveCall] | None = None,
    ) -> None:
        self._heartbeat = heartbeat
        self._pace = pace
        self._conversation = conversation
        self._step = step
        self._attempt = attempt
        self._describe = describe
        self._unsent: list[tuple[int | None, str]] = []
        """Pieces, each with the index of its call; None: text."""
        self._tail = sent.text if sent else ""
        self.length = sent.start + len(sent.text) if sent else 0
        """The characters that were sent, with those between parts."""
        self.cursor: TextCursor | None = None
        """Sent with the text: where the stream of a background response continues after what was written."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_sent = self.length > 0
        """Whether a heartbeat has had any of it."""
        self._on_write: Callable[[], None] | None = None
        self._begun: list[tuple[str, str]] = []
        """The id and the name of each call, as they were when it began."""
        self._calls: dict[int, LiveCall] = {}
        self._parts: list[LivePart] = []
        self._index: int | None = None
        """The call whose arguments are written; None: text is."""
        self._lengths: Counter[int | None] = Counter({None: self.length})
        """The characters of the text and of each call that were sent."""

    def write(self, piece: str) -> None:
        """Add a piece of text. On the event loop only."""
        self._add(None, piece)

    def write_call(self, index: int, call_id: str, name: str, piece: str) -> None:
        """Add a piece of the arguments of a known call, or of the next one: see `OnCall`. On the event loop only."""
        if index == len(self._begun) < MOST_PARTS:
            self._begun.append((call_id, name))
        if index < len(self._begun):
            self._add(index, piece)

    @contextmanager
    def published(self, publisher: Publisher | None) -> Iterator[None]:
        """Let the live channel have it, too, while the block runs in the activity that writes it."""
        if publisher is None:
            yield
            return
        info = activity.info()
        at = info.current_attempt_scheduled_time
        place = CallPlace(
            workflow=info.workflow_id or "",
            run=info.workflow_run_id or "",
            scheduled=int(at.timestamp()) * 1000 + at.microsecond // 1000,
            attempt=self._attempt,
            conversation=self._conversation,
            step=self._step,
        )
        with publisher.calling(place, self.snapshot) as self._on_write:
            yield

    def snapshot(self) -> LiveText:
        """The end of what is written."""
        if self._unsent:
            self._take_unsent()
        return LiveText(
            conversation=self._conversation,
            step=self._step,
            attempt=self._attempt,
            start=self.length - len(self._tail),
            text=self._tail,
            parts=list(self._parts),
            cursor=self.cursor and self.cursor.model_copy(update={"length": self.length}),
        )

    def flush(self) -> None:
        """Send what was not sent yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._send()

    def _add(self, index: int | None, piece: str) -> None:
        self._unsent.append((index, piece))
        if self._on_write is not None:
            self._on_write()
        if self._timer is None:
            seconds = self._pace.seconds if self._is_sent else min(FIRST_AFTER, self._pace.seconds)
            self._timer = self._heartbeat.call_later(seconds, self._send)

    def _send(self) -> None:
        self._timer, self._is_sent = None, True
        self._heartbeat.send_live({LIVE_TEXT: self.snapshot().model_dump()})

    def _take_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        written = [
            (index, "".join(piece for _, piece in each)) for index, each in groupby(unsent, lambda each: each[0])
        ]
        index, last = written[-1]
        if "\ud800" <= last[-1:] < "\udc00":  # the first half of a surrogate pair: the second is in the next piece
            written[-1], self._unsent = (index, last[:-1]), [(index, last[-1])]
        for index, text in written:
            if index == self._index or self._begin(index):
                self._append(str(well_formed(text)).replace("\0", "\ufffd"))

    def _begin(self, index: int | None) -> bool:
        """Begin a part, unless there are too many: what is written then comes with the answer."""
        if len(self._parts) >= MOST_PARTS:
            return False
        self._tail += PART_GAP
        self.length += len(PART_GAP)
        call = None if index is None else self._calls.get(index) or self._known(index)
        self._parts.append(LivePart(at=self.length, start=self._lengths[index], call=call))
        self._index = index
        return True

    def _known(self, index: int) -> LiveCall:
        assert self._describe is not None
        begun = [ToolCall(id=call_id, name=name, arguments="") for call_id, name in self._begun[: index + 1]]
        call = self._calls[index] = self._describe(begun)
        return call

    def _append(self, text: str) -> None:
        self._tail = (self._tail + text).encode()[-MAX_BYTES:].decode(errors="ignore")
        self.length += len(text)
        self._lengths[self._index] += len(text)
