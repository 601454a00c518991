"""How long a worker waits for models whose endpoint is down or limits it, and which error each failed request becomes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from mulligan.activities.heartbeat import Heartbeat
from mulligan.activities.models.endpoint_limits import MAX_WAIT, EndpointLimits
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelUnavailableError, truncated
from mulligan.observe.metrics import Metrics
from mulligan.schema.error_text import error_text, type_name
from mulligan.wire.model_call import ModelRequest

TOO_MANY_REQUESTS = 429
MAX_DELAY = 60.0
"""Seconds between two attempts at most, unless the endpoint asks for more by Retry-After."""
DELAY_GROWTH, LIMITED_DELAY_GROWTH = 1.5, 2.0
"""The ratio of each delay to the previous one: without `model_attempts`, and with it, so that a few attempts outlast a
restart of the endpoint. Why the first is not 2: docs/decisions/2026-11-27-lost-workers.md."""
MOST_PAID_ATTEMPTS = 3
"""Attempts whose answers had begun when they failed: each of them was paid for."""


class RetryBudget:
    """Decides when a model may be called, and when a failed call is retried or given up. One for a worker.

    A call's budget is its `patience` (seconds) and `attempts` (a number, or None).
    """

    def __init__(self, metrics: Metrics) -> None:
        self._limits = EndpointLimits()
        self._metrics = metrics

    async def wait_until_allowed(self, request: ModelRequest, heartbeat: Heartbeat) -> float:
        """Wait while the endpoint limits this worker. If that would take long, end the attempt instead.

        Returns:
            The time at which the request is sent, for `error_to_raise`.

        Raises:
            ApplicationError: Temporal retries the activity after the delay in it.
        """
        if not await self._limits.wait_until_allowed(request.model):
            delay = self._limits.schedule_return(request.model)
            first, failures, paid = _failures_so_far(heartbeat)
            if request.attempts is not None:
                # Temporal counts attempts: without a request, an attempt must not use up one of the few allowed ones.
                await asyncio.sleep(min(delay, MAX_WAIT))
            elif time.time() + delay - first <= request.patience:
                heartbeat.send_details(first, failures, paid)
                self._metrics.count_unsent_request(request.model)
                raise ApplicationError(
                    f"{request.model} limits this worker: no request was sent; next attempt in {delay:.0f} s",
                    type="ModelLimited",
                    category=ApplicationErrorCategory.BENIGN,
                    next_retry_delay=timedelta(seconds=delay),
                )
            # Else the patience ends before the request is allowed: one more request may succeed, waiting cannot.
        return self._limits.now()

    def record_success(self, request: ModelRequest) -> None:
        """Record that the request was answered."""
        self._limits.record_success(request.model)

    @asynccontextmanager
    async def single_request(self, model: str, max_wait: float) -> AsyncIterator[None]:
        """Send an optional request in the block, without retries. The endpoint's limit applies to it too.

        Raises:
            Unavailable: the limit does not allow it within `max_wait` seconds.
        """
        if not await self._limits.wait_until_allowed(model, min(max_wait, MAX_WAIT)):
            self._metrics.count_unsent_request(model)
            raise Unavailable(f"{model} limits this worker")
        sent = self._limits.now()
        try:
            yield
        except Unavailable as error:
            if _is_rate_limit(error):
                self._limits.record_limit(model, sent=sent, retry_after=error.retry_after)
            raise
        self._limits.record_success(model)

    def error_to_raise(
        self,
        request: ModelRequest,
        error: Exception,
        heartbeat: Heartbeat,
        sent: float | None = None,
        *,
        has_begun: bool = False,
    ) -> ApplicationError:
        """The error to raise for a failed request: Temporal retries it after a delay, or it ends the budget.

        Args:
            request: The model call.
            error: What the provider raised.
            heartbeat: Carries the first failure's time, and the number of failures, to the next attempt.
            sent: When the request was sent, from `wait_until_allowed`; None if it was not.
            has_begun: Whether a part of the answer had arrived.
        """
        if isinstance(error, TimeoutError):
            error = Unavailable(str(error) or f"no answer within {request.timeout:g} s")
        if isinstance(error, Unavailable):
            # Its words say all. With a traceback, it may exceed the 4 KB that Temporal keeps of a failure that waits.
            error.with_traceback(None)
        first, failures, paid = _failures_so_far(heartbeat)
        now, paid = time.time(), paid + has_begun
        heartbeat.send_details(first, failures + 1, paid)
        message = truncated(
            str(error) if isinstance(error, Unavailable) else f"{type_name(error)}: {error_text(error)}"
        )
        delay = self._retry_delay(request, error, failures, self._limits.now() if sent is None else sent)
        is_out_of_time = now + delay - first > request.patience
        is_out_of_attempts = request.attempts is not None and activity.info().attempt >= request.attempts
        if is_out_of_time or is_out_of_attempts or (has_begun and paid >= MOST_PAID_ATTEMPTS):
            attempts = f"{failures + 1} attempt{'s' * (failures > 0)} in {now - first:.0f} s"
            return ModelUnavailableError(f"{request.model} was unavailable: {attempts}; the last: {message}")
        return ApplicationError(
            message,
            {"status": error.status if isinstance(error, Unavailable) else None},
            type="ModelUnavailable",
            next_retry_delay=timedelta(seconds=delay),
        )

    def _retry_delay(self, request: ModelRequest, error: Exception, failures: int, sent: float) -> float:
        """Seconds until the next attempt."""
        model, growth = request.model, DELAY_GROWTH if request.attempts is None else LIMITED_DELAY_GROWTH
        retry_after = error.retry_after if isinstance(error, Unavailable) else None
        if retry_after is not None:
            # Jitter upwards only: never before the time that the endpoint asked for.
            delay = retry_after * random.uniform(1, 1.25)  # noqa: S311 - not for secrets
        else:
            # Each delay has a range as long as itself, so that runs that failed together spread out.
            delay = min(MAX_DELAY, growth ** min(failures, 20)) * random.uniform(0.5, 1.5)  # noqa: S311
        if _is_rate_limit(error):
            self._limits.record_limit(model, sent=sent, retry_after=retry_after)
            delay = self._limits.schedule_return(model, delay)
        return delay


def _is_rate_limit(error: Exception) -> bool:
    return isinstance(error, Unavailable) and (error.status == TOO_MANY_REQUESTS or error.retry_after is not None)


def _failures_so_far(heartbeat: Heartbeat) -> tuple[float, int, int]:
    """The time of the call's first failure (now, if none), the number of its failed requests, and of those that had begun.

    They are in the heartbeat's details, which the next attempt reads. Time in which the call waited for a worker is not the
    endpoint's fault and does not count, nor does an attempt that sent no request.
    """
    match heartbeat.details:
        case [(float() | int()) as first, int() as failures, *rest] if first <= time.time() and failures >= 0:
            return first, failures, rest[0] if rest and isinstance(rest[0], int) else 0
    return time.time(), activity.info().attempt - 1, 0  # none, or another program's
