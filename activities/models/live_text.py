"""Send the text that the model has written so far, in heartbeats, to clients that follow the run. History has none of it."""

from __future__ import annotations

import asyncio

from mulligan.activities.heartbeat import Heartbeat
from mulligan.values import well_formed
from mulligan.wire.event_types import LIVE_TEXT, LiveText, TextCursor

FIRST_AFTER = 0.2
"""Seconds, at most, from the first piece of an answer to the heartbeat that carries it: a person sees that it begins."""
MAX_BYTES = 16 * 1024
"""Bytes of the text's end that a heartbeat carries: more than any model writes between two polls of a client."""


class LiveTextHeartbeats:
    """The text of one answer.

    Args:
        heartbeat: Sends the text.
        seconds: From a later piece of text to the heartbeat that carries it. An answer that is complete before the first
            heartbeat costs none.
        conversation: The conversation's key.
        step: The step's number.
        attempt: The attempt of the model call.
        sent: The text that was sent before, if this continues it.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        seconds: float,
        conversation: str,
        step: int,
        attempt: int,
        sent: LiveText | None = None,
    ) -> None:
        self._heartbeat = heartbeat
        self._seconds = seconds
        self._conversation = conversation
        self._step = step
        self._attempt = attempt
        self._unsent: list[str] = []
        self._tail = sent.text if sent else ""
        self.length = sent.start + len(sent.text) if sent else 0
        """The characters that were sent."""
        self.cursor: TextCursor | None = None
        """Sent with the text: where the stream of a background response continues after what was written."""
        self._timer: asyncio.TimerHandle | None = None

    def write(self, piece: str) -> None:
        """Add a piece of text. On the event loop only."""
        self._unsent.append(piece)
        if self._timer is None:
            seconds = self._seconds if self.length else min(FIRST_AFTER, self._seconds)
            self._timer = self._heartbeat.call_later(seconds, self._send)

    def flush(self) -> None:
        """Send what was not sent yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._send()

    def _send(self) -> None:
        self._timer = None
        text, self._unsent = "".join(self._unsent), []
        if "\ud800" <= text[-1:] < "\udc00":  # the first half of a surrogate pair: the second is in the next piece
            text, self._unsent = text[:-1], [text[-1]]
        text = str(well_formed(text)).replace("\0", "\ufffd")
        self.length += len(text)
        self._tail = (self._tail + text).encode()[-MAX_BYTES:].decode(errors="ignore")
        live = LiveText(
            conversation=self._conversation,
            step=self._step,
            attempt=self._attempt,
            start=self.length - len(self._tail),
            text=self._tail,
            cursor=self.cursor and self.cursor.model_copy(update={"length": self.length}),
        )
        self._heartbeat.send_live({LIVE_TEXT: live.model_dump()})
