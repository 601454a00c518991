"""Rate limits of models, as one worker observes them: after a 429 all of the worker's runs slow down together.

Otherwise a thousand runs that all receive "retry in 5 s" send requests in the same second, and most get another 429. After
a 429 no request is sent to that model for the time that the endpoint asked for. Then requests are sent one by one, at half
the rate at which they were answered before, and the rate doubles every 5 s until the next 429: TCP's rule, and that of the
AWS SDKs' adaptive mode. Calls that cannot be sent soon leave the worker: Temporal retries them later, spread over time.
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
"""Seconds that a call may wait in the worker: it occupies a slot, and the time counts against the attempt's timeout."""
MAX_WAITING = 50
"""Calls of one model that may wait in the worker: its slots are also for other work."""
MAX_PAUSE = 60.0
"""Seconds without any request at most: an endpoint that asks for hours delays one call so long, not all of them."""
MAX_SPREAD = 60.0
"""Seconds over which deferred calls return at most, so that they notice soon when the limit has ended."""
MIN_RATE = 1.0
"""Requests a second at first, where none was answered recently."""
DOUBLING_TIME = 5.0
"""Seconds in which the rate doubles while there is no 429."""
UNLIMITED_RATE = 1000.0
"""Requests a second at which a limit is removed, as no endpoint allows one worker that many."""
RATE_WINDOW = 10.0
"""Seconds over which the rate of answers is averaged."""
MAX_MODELS = 1000
"""Models whose rate of answers is stored; a run's input may name any model."""


class EndpointLimits:
    """The limits of all models that this worker calls. One for a worker; on its event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits: dict[str, _Limit] = {}
        self._answer_rates: dict[str, tuple[float, float]] = {}

    async def wait_until_allowed(self, model: str, max_wait: float = MAX_WAIT) -> bool:
        """Wait until a request may be sent to a model. Without a limit that is at once.

        Args:
            model: The model, with its provider.
            max_wait: Seconds to wait at most.

        Returns:
            Whether it may be sent now. If not, the call must leave the worker: `schedule_return` says for how long.
        """
        end = self._clock() + max_wait
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
            if limit.until <= self._clock():  # otherwise a request before this one got a 429 meanwhile
                break
        return True

    def record_limit(self, model: str, *, sent: float, retry_after: float | None) -> None:
        """Record that a request was answered with 429 or with Retry-After.

        Args:
            model: The model, with its provider.
            sent: When the request was sent, by `now()`.
            retry_after: Seconds that the endpoint asks to wait.
        """
        now = self._clock()
        limit = self._limit(model)
        if limit is None:
            self._limits = {name: each for name, each in self._limits.items() if not each.is_over(now)}
            limit = self._limits[model] = _Limit(self._rate_of_answers(model, now), now)
            limit.slow_down(now, retry_after)
            logger.warning(
                "%s limits this worker, which sends no request for %.0f s, and then %.1f a second at first.",
                model,
                limit.until - now,
                limit.rate,
            )
        elif sent >= limit.changed:
            limit.slow_down(now, retry_after)
        elif retry_after is not None:
            # Sent before the limit was recorded: it contains nothing new, except perhaps a longer wait.
            limit.pause(now, retry_after)

    def schedule_return(self, model: str, at_least: float = 0.0) -> float:
        """Reserve a time at which a call that leaves the worker returns, and return the seconds until then."""
        limit = self._limit(model)
        return at_least if limit is None else limit.schedule_return(self._clock(), at_least)

    def record_success(self, model: str) -> None:
        """Record that a request was answered."""
        now = self._clock()
        rate = self._rate_of_answers(model, now) + 1 / RATE_WINDOW
        self._answer_rates.pop(model, None)
        self._answer_rates[model] = rate, now  # the newest is last
        if len(self._answer_rates) > MAX_MODELS:
            del self._answer_rates[next(iter(self._answer_rates))]
        if limit := self._limit(model):
            limit.consecutive_limits = 0

    def now(self) -> float:
        """The time, for `record_limit`."""
        return self._clock()

    def _limit(self, model: str) -> _Limit | None:
        limit = self._limits.get(model)
        if limit is not None and limit.is_over(self._clock()):
            del self._limits[model]
            logger.warning("%s no longer limits this worker.", model)
            return None
        return limit

    def _rate_of_answers(self, model: str, now: float) -> float:
        """Recent answers a second: a mean in which an answer of 10 s ago counts for a third."""
        rate, at = self._answer_rates.get(model, (0.0, now))
        return rate * math.exp((at - now) / RATE_WINDOW)


class _Limit:
    """The limit of one model. Times are those of a monotonic clock.

    Args:
        rate: Requests a second that were answered before.
        now: When the endpoint answered 429 first.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        """Requests a second at `until`; from then on it doubles every DOUBLING_TIME."""
        self.until = now
        """No request is sent before this time."""
        self.changed = now
        """When the rate was reduced last: a 429 to a request that was sent before contains nothing new."""
        self.waiting = 0
        """The number of calls that wait in the worker."""
        self.consecutive_limits = 0
        """How often the rate was reduced since the last answer."""
        self._next_slot = now
        """When the next request may be sent."""
        self._returns: list[float] = []
        """When deferred calls return: a heap."""

    def is_over(self, now: float) -> bool:
        return self._rate_at(now) >= UNLIMITED_RATE

    def slow_down(self, now: float, retry_after: float | None) -> None:
        """Pause, and continue at half the rate."""
        rate = self._rate_at(now)
        self.changed = now
        self.until = self._next_slot = now
        self.pause(now, min(MAX_PAUSE, 2.0**self.consecutive_limits) if retry_after is None else retry_after)
        self.rate = max(MIN_RATE, rate / 2)
        self.consecutive_limits = min(self.consecutive_limits + 1, 10)

    def pause(self, now: float, seconds: float) -> None:
        """Send no request for a while; calls that wait in the worker reserve their places again."""
        # Jitter upwards only: other workers got the same time.
        until = now + min(MAX_PAUSE, seconds * random.uniform(1, 1.1))  # noqa: S311 - not for secrets
        if until > self.until:
            self.until = self._next_slot = until

    def reserve(self, now: float, end: float) -> float | None:
        """Reserve the next slot; return the seconds until then, or None if that is after `end` or too many calls wait."""
        at = max(now, self.until, self._next_slot)
        if at > end or (at > now and self.waiting >= MAX_WAITING):
            return None
        self._next_slot = at + 1 / self._rate_at(at)
        return at - now

    def schedule_return(self, now: float, at_least: float) -> float:
        """Seconds until a deferred call returns: after the calls that wait here, at a random time among the deferred."""
        while self._returns and self._returns[0] <= now:
            heapq.heappop(self._returns)
        free = max(now, self.until, self._next_slot)
        spread = min(MAX_SPREAD, (len(self._returns) + 1) / self._rate_at(free))
        delay = max(at_least, free - now + random.uniform(0, spread))  # noqa: S311
        heapq.heappush(self._returns, now + delay)
        return delay

    def _rate_at(self, at: float) -> float:
        doublings = max(0.0, at - self.until) / DOUBLING_TIME
        return self.rate * math.exp2(min(100.0, doublings))
