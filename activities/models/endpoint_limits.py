"""What this worker knows of endpoints that limit it: a model that answers 429 is asked less, by all of the worker's runs.

Without it a thousand runs that are told "in 5 s" come again in the same second, and most of them are told so once more.
After a 429 nothing goes out to that model for as long as was asked for. Then requests go out one by one, at half the
rate that was answered before, and the rate doubles every 5 s until the next 429: the rule of TCP, and of the AWS SDKs'
adaptive mode. Calls that cannot go out soon leave the worker: Temporal brings them back, spread over time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
import time
from collections.abc import Callable

logger = logging.getLogger("mulligan.models")

MAX_WAIT = 10.0
"""Seconds that a call may wait in the worker. It holds a slot meanwhile, and the workflow's limit for an attempt runs."""
MAX_WAITING = 50
"""Calls of one model that wait in the worker: its slots are for other work too."""
MAX_PAUSE = 60.0
"""Seconds without any request at most. An endpoint that asks for hours is asked for it by one call, not for all."""
MAX_SPREAD = 60.0
"""Seconds over which calls that were sent away come back at most: they soon notice that the endpoint is free again."""
MIN_RATE = 1.0
"""Requests a second to begin with, where none was answered lately."""
DOUBLING_TIME = 5.0
"""Seconds in which the rate doubles while the endpoint does not say 429."""
UNLIMITED_RATE = 1000.0
"""Requests a second that no endpoint allows one worker: the limit is forgotten."""
RATE_WINDOW = 10.0
"""Seconds over which the rate of answers is measured."""
MAX_MODELS = 1000
"""Models whose rate of answers is kept; a run's input may name any."""


class EndpointLimits:
    """The limits of all models that this worker asks. One for a worker; on its event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits: dict[str, _Limit] = {}
        self._answered: dict[str, tuple[float, float]] = {}

    async def wait_until_allowed(self, model: str, longest: float = MAX_WAIT) -> bool:
        """Wait until a request may go out to a model, which is at once unless it limits us.

        Args:
            model: the provider and the model.
            longest: how many seconds to wait here.

        Returns:
            Whether it may go out; else the line is longer than that, and who comes again does so `later`.
        """
        end = self._clock() + longest
        while (limit := self._limit(model)) is not None:
            now = self._clock()
            wait = limit.reserve(now, end)
            if wait is None:
                return False
            limit.waiting += 1
            try:
                await asyncio.sleep(wait)
            finally:
                limit.waiting -= 1
            if limit.until <= self._clock():  # else it said 429 to somebody before us in the line
                break
        return True

    def record_limit(self, model: str, *, sent: float, retry_after: float | None) -> None:
        """A request was answered with 429, or with when to come again.

        Args:
            model: the provider and the model.
            sent: when the request went out, by `now()`.
            retry_after: seconds that the endpoint asks to wait.
        """
        now = self._clock()
        limit = self._limit(model)
        if limit is None:
            self._limits = {name: kept for name, kept in self._limits.items() if not kept.is_over(now)}
            limit = self._limits[model] = _Limit(self._rate_of_answers(model, now), now)
            limit.slow_down(now, retry_after)
            logger.warning(
                "%s limits us. For %.0f s this worker asks it no more, then %.1f times a second at first.",
                model,
                limit.until - now,
                limit.rate,
            )
        elif sent >= limit.changed:
            limit.slow_down(now, retry_after)
        elif retry_after is not None:
            # One of many that were under way when the limit came: it says nothing new but, maybe, a later time.
            limit.pause(now, retry_after)

    def schedule_return(self, model: str, at_least: float = 0.0) -> float:
        """After how many seconds, `at_least`, a call may come again: a place among the others that were sent away."""
        limit = self._limit(model)
        return at_least if limit is None else limit.schedule_return(self._clock(), at_least)

    def record_success(self, model: str) -> None:
        """A request was answered."""
        now = self._clock()
        rate = self._rate_of_answers(model, now) + 1 / RATE_WINDOW
        self._answered.pop(model, None)
        self._answered[model] = rate, now  # the newest is last
        if len(self._answered) > MAX_MODELS:
            del self._answered[next(iter(self._answered))]
        if limit := self._limit(model):
            limit.misses = 0

    def now(self) -> float:
        """The time that `limited` takes."""
        return self._clock()

    def _limit(self, model: str) -> _Limit | None:
        limit = self._limits.get(model)
        if limit is not None and limit.is_over(self._clock()):
            del self._limits[model]
            logger.warning("%s limits us no more.", model)
            return None
        return limit

    def _rate_of_answers(self, model: str, now: float) -> float:
        """Answers a second of late: a mean in which what is 10 s old counts for a third."""
        rate, at = self._answered.get(model, (0.0, now))
        return rate * math.exp((at - now) / RATE_WINDOW)


class _Limit:
    """One model's. Times are the clock's, whose zero is any moment: on Linux, the start of the machine.

    Args:
        rate: requests a second that were answered so far.
        now: when the model's endpoint answered 429 first.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        """Requests a second at `until`; it doubles every DOUBLING_TIME from then on."""
        self.until = now
        """No request goes out before."""
        self.changed = now
        """When it was slowed down last: a 429 to what went out before says nothing new."""
        self.waiting = 0
        """How many calls stand in the line."""
        self.misses = 0
        """How often it was slowed down since the last answer."""
        self._free = now
        """When the next request may go out."""
        self._away: list[float] = []
        """When calls come back that were sent away: a heap."""

    def is_over(self, now: float) -> bool:
        return self._rate_at(now) >= UNLIMITED_RATE

    def slow_down(self, now: float, retry_after: float | None) -> None:
        """Pause, and go on at half the rate."""
        rate = self._rate_at(now)
        self.changed = now
        self.until = self._free = now
        self.pause(now, min(MAX_PAUSE, 2.0**self.misses) if retry_after is None else retry_after)
        self.rate = max(MIN_RATE, rate / 2)
        self.misses = min(self.misses + 1, 10)

    def pause(self, now: float, seconds: float) -> None:
        """Let nothing out for a while; who waits in the line stands in a new one then."""
        # Jitter upwards only: other workers were told the same.
        until = now + min(MAX_PAUSE, seconds * random.uniform(1, 1.1))  # noqa: S311 - not for secrets
        if until > self.until:
            self.until = self._free = until

    def reserve(self, now: float, end: float) -> float | None:
        """A place in the line: seconds until its turn, or None where that is after `end`, or the line is full."""
        at = max(now, self.until, self._free)
        if at > end or (at > now and self.waiting >= MAX_WAITING):
            return None
        self._free = at + 1 / self._rate_at(at)
        return at - now

    def schedule_return(self, now: float, at_least: float) -> float:
        """Seconds until a call may come back that is sent away: when the line is through, spread like the others."""
        while self._away and self._away[0] <= now:
            heapq.heappop(self._away)
        free = max(now, self.until, self._free)
        spread = min(MAX_SPREAD, (len(self._away) + 1) / self._rate_at(free))
        delay = max(at_least, free - now + random.uniform(0, spread))  # noqa: S311
        heapq.heappush(self._away, now + delay)
        return delay

    def _rate_at(self, at: float) -> float:
        doublings = max(0.0, at - self.until) / DOUBLING_TIME
        return self.rate * math.exp2(min(100.0, doublings))
