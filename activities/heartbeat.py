"""A sign of life from every activity that may take long, so that a dead worker is noticed within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

EVERY = 2.0
"""Seconds between two beats: the workflow's heartbeat timeout is 8."""
_ENDED = "mulligan.ended"


@asynccontextmanager
async def beating() -> AsyncIterator[Heart]:
    """Beat while the body runs."""
    heart = Heart()
    if activity.info().is_local:
        yield heart
        return
    heart.beat_on()
    try:
        yield heart
    except BaseException as error:
        heart.say_ended()
        if not isinstance(error, asyncio.CancelledError):
            raise
        details = activity.cancellation_details()
        if details is not None and details.worker_shutdown:
            # Not the run's cancellation: Temporal tries again elsewhere, if the retry policy lets it.
            raise ApplicationError("The worker shut down before it was done.", type="WorkerShutdown") from None
        raise
    finally:
        heart.stop()


def attempt_before_was_lost() -> bool:
    """Whether the attempt before this one went down with its worker, or was cut off: it did not say that it ended."""
    info = activity.info()
    return info.attempt > 1 and not info.is_local and _ended(info.attempt - 1) not in info.heartbeat_details


def given_up() -> bool:
    """Whether Temporal has given this attempt up, and said so: the next one writes the span of it, so this one must not."""
    details = activity.cancellation_details()
    return details is not None and not (details.cancel_requested or details.worker_shutdown)


class Heart:
    """The details that each beat carries: they are there on the next attempt."""

    def __init__(self) -> None:
        info = activity.info()
        self.details: tuple[Any, ...] = tuple(said for said in info.heartbeat_details if not _is_end(said))
        """What was said last, by this attempt or the one before."""
        self._attempt = info.attempt
        self._is_local = activity.info().is_local
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None

    def say(self, *details: Any) -> None:
        """Beat now, with new details. From any thread."""
        self.details = details
        if self._is_local:
            return
        try:
            at_home = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            at_home = False
        if at_home:
            # At once: what is said just before a failure is there on the next attempt.
            activity.heartbeat(*details)
        else:
            self._loop.call_soon_threadsafe(self._beat)

    def beat_on(self) -> None:
        """Beat now and again."""
        if self._attempt > 1 or self._next is not None:
            # Not at the start of a first attempt: most are done before the second beat, and each is a call to the server.
            self._beat()
        self._next = self._loop.call_later(EVERY, self.beat_on)

    def stop(self) -> None:
        """Beat no more."""
        if self._next is not None:
            self._next.cancel()

    def say_ended(self) -> None:
        """For the next attempt: this one has failed in good order, and writes its own spans."""
        activity.heartbeat(*self.details, _ended(self._attempt))

    def _beat(self) -> None:
        activity.heartbeat(*self.details)


def _ended(attempt: int) -> dict[str, int]:
    return {_ENDED: attempt}


def _is_end(said: Any) -> bool:
    return isinstance(said, dict) and list(said) == [_ENDED]
