"""What the model has written so far, told to who watches: it rides in the heartbeats, and nothing of it is in history."""

from __future__ import annotations

import asyncio

from mulligan.activities.heartbeat import Heartbeat
from mulligan.values import well_formed
from mulligan.wire.event_types import LIVE_TEXT, LiveText

MAX_BYTES = 16 * 1024
"""Bytes of the text's end that a beat carries. Who looks every few seconds misses nothing of what any model writes."""


class LiveTextHeartbeats:
    """The text of one answer as it comes. The first beat is `seconds` after its first word: short answers cost none."""

    def __init__(self, heart: Heartbeat, seconds: float, conversation: str, step: int, attempt: int) -> None:
        self._heart = heart
        self._seconds = seconds
        self._about = (conversation, step, attempt)
        self._new: list[str] = []
        self._tail = ""
        self._length = 0
        self._next: asyncio.TimerHandle | None = None

    def write(self, piece: str) -> None:
        """Add a piece. On the event loop."""
        self._new.append(piece)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self._seconds, self._beat)

    def _beat(self) -> None:
        self._next = None
        new, self._new = "".join(self._new), []
        if "\ud800" <= new[-1:] < "\udc00":  # half a letter: the other half is in the next piece
            new, self._new = new[:-1], [new[-1]]
        new = str(well_formed(new)).replace("\0", "\ufffd")
        self._length += len(new)
        self._tail = (self._tail + new).encode()[-MAX_BYTES:].decode(errors="ignore")
        conversation, step, attempt = self._about
        start = self._length - len(self._tail)
        text = LiveText(conversation=conversation, step=step, attempt=attempt, start=start, text=self._tail)
        self._heart.send_live({LIVE_TEXT: text.model_dump()})
