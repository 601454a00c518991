"""A sign of life from every activity that may take long, so that a dead worker is noticed within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.wire.event_types import LIVE_TEXT

FIRST_AFTER, INTERVAL = 2.0, 3.0
"""Seconds until the first beat, and between two: the workflow's heartbeat timeout is 8."""
_ENDED = "mulligan.ended"


@asynccontextmanager
async def heartbeating() -> AsyncIterator[Heartbeat]:
    """Beat while the body runs."""
    heart = Heartbeat()
    if activity.info().is_local:
        yield heart
        return
    heart.start()
    try:
        yield heart
    except BaseException as error:
        heart.send_ended()
        if not isinstance(error, asyncio.CancelledError):
            raise
        details = activity.cancellation_details()
        if details is not None and details.worker_shutdown:
            # Not the run's cancellation: Temporal tries again elsewhere, if the retry policy lets it.
            raise ApplicationError("The worker shut down before it was done.", type="WorkerShutdown") from None
        raise
    finally:
        heart.stop()


def previous_attempt_was_lost() -> bool:
    """Whether the attempt before this one went down with its worker, or was cut off: it did not say that it ended."""
    info = activity.info()
    return info.attempt > 1 and not info.is_local and _ended(info.attempt - 1) not in info.heartbeat_details


def attempt_was_abandoned() -> bool:
    """Whether Temporal has given this attempt up, and said so: the next one writes the span of it, so this one must not."""
    details = activity.cancellation_details()
    return details is not None and not (details.cancel_requested or details.worker_shutdown)


class Heartbeat:
    """The details that each beat carries: they are there on the next attempt."""

    def __init__(self) -> None:
        info = activity.info()
        self.details: tuple[Any, ...] = tuple(said for said in info.heartbeat_details if not _is_ours(said))
        """What was said last, by this attempt or the one before."""
        self._shown: tuple[dict[str, Any], ...] = ()
        self._is_stopped = False
        self._sent_at = -INTERVAL
        self._attempt = info.attempt
        self._is_local = activity.info().is_local
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None

    def send_details(self, *details: Any) -> None:
        """Beat with new details: now, or with the next beat if one was just before. From any thread."""
        self.details = details
        if self._is_local:
            return
        try:
            at_home = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            at_home = False
        if at_home:
            self._send_if_due()
        else:
            self._loop.call_soon_threadsafe(self._send_if_due)

    def send_live(self, shown: dict[str, Any]) -> None:
        """Beat now, with what is for those who watch this attempt: an object of one field. On the event loop."""
        self._shown = (shown,)
        if not (self._is_local or self._is_stopped):
            self._send()

    def start(self) -> None:
        """Beat now and again."""
        if self._attempt > 1 or self._next is not None:
            # Not at the start of a first attempt: most are done before the second beat, and each is a call to the server.
            self._send()
        self._next = self._loop.call_later(FIRST_AFTER if self._next is None else INTERVAL, self.start)

    def stop(self) -> None:
        """Beat no more."""
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()

    def send_ended(self) -> None:
        """For the next attempt: this one has failed in good order, and writes its own spans."""
        activity.heartbeat(*self.details, *self._shown, _ended(self._attempt))

    def _send(self) -> None:
        self._sent_at = self._loop.time()
        activity.heartbeat(*self.details, *self._shown)

    def _send_if_due(self) -> None:
        # What is held back is in the next beat, or in that of the end: a tool may say something a thousand times a second.
        if self._loop.time() - self._sent_at >= INTERVAL:
            self._send()


def _ended(attempt: int) -> dict[str, int]:
    return {_ENDED: attempt}


def _is_ours(said: Any) -> bool:
    return isinstance(said, dict) and list(said) in ([_ENDED], [LIVE_TEXT])
