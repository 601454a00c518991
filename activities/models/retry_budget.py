"""How long an endpoint that is down, or limits us, is waited for: one for a worker, for all that it asks of models."""

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
from mulligan.errors import ModelUnavailableError
from mulligan.observe.metrics import Metrics
from mulligan.wire.compaction_request import CompactConversation
from mulligan.wire.model_call import ModelCall

TOO_MANY_REQUESTS = 429
MAX_DELAY = 60.0
"""Seconds between two attempts at most, unless the endpoint asks for more by Retry-After."""

Order = ModelCall | CompactConversation


class RetryBudget:
    """When a model may be asked, and what its endpoint's failure means for the attempt."""

    def __init__(self, metrics: Metrics) -> None:
        self._limits = EndpointLimits()
        self._metrics = metrics

    async def wait_until_allowed(self, order: Order, heart: Heartbeat) -> float:
        """Wait until an endpoint that limits this worker may be asked; where that takes long, leave the worker for it.

        Returns:
            When the request goes out: `try_again` takes it.

        Raises:
            ApplicationError: to be tried again by Temporal, after the delay that it carries.
        """
        if not await self._limits.wait_until_allowed(order.model):
            delay = self._limits.schedule_return(order.model)
            first, failures = _failed(heart)
            if order.attempts is not None:
                # Temporal counts attempts: one that asked nothing must not be one of the few that the agent allows.
                await asyncio.sleep(min(delay, MAX_WAIT))
            elif time.time() + delay - first <= order.patience:
                heart.send_details(first, failures)
                self._metrics.held_back(order.model)
                raise ApplicationError(
                    f"{order.model} limits this worker: not asked now, again in {delay:.0f} s",
                    type="ModelLimited",
                    category=ApplicationErrorCategory.BENIGN,
                    next_retry_delay=timedelta(seconds=delay),
                )
            # Else its patience is over before its turn: it asks once more, rather than to fail without an answer.
        return self._limits.now()

    def record_success(self, order: Order) -> None:
        """The request was answered."""
        self._limits.record_success(order.model)

    @asynccontextmanager
    async def single_request(self, model: str, longest: float) -> AsyncIterator[None]:
        """Ask a model in this block, once, that a call does without where it is not to be had: the limit holds for it too.

        Raises:
            Unavailable: its turn does not come within so many seconds.
        """
        if not await self._limits.wait_until_allowed(model, min(longest, MAX_WAIT)):
            self._metrics.held_back(model)
            raise Unavailable(f"{model} limits this worker")
        sent = self._limits.now()
        try:
            yield
        except Unavailable as error:
            if _says_limit(error):
                self._limits.record_limit(model, sent=sent, retry_after=error.retry_after)
            raise
        self._limits.record_success(model)

    def error_to_raise(self, order: Order, error: Exception, heart: Heartbeat, sent: float) -> ApplicationError:
        """The failure that Temporal retries, with the delay to wait; or the typed one when patience is spent."""
        if isinstance(error, TimeoutError):
            error = Unavailable(f"no answer within {order.timeout:g} s")
        info = activity.info()
        now = time.time()
        first, failures = _failed(heart)
        heart.send_details(first, failures + 1)
        status = error.status if isinstance(error, Unavailable) else None
        said = f"{error}" if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        asked = error.retry_after if isinstance(error, Unavailable) else None
        if asked is not None:
            # Jitter upwards only: never before the time that was asked for.
            delay = asked * random.uniform(1, 1.25)  # noqa: S311 - not for secrets
        else:
            # Each round spreads over as long as it waits, so that runs that failed together drift apart.
            delay = min(MAX_DELAY, 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.5)  # noqa: S311
        if _says_limit(error):
            self._limits.record_limit(order.model, sent=sent, retry_after=asked)
            delay = self._limits.schedule_return(order.model, delay)
        out_of_time = now + delay - first > order.patience
        out_of_attempts = order.attempts is not None and info.attempt >= order.attempts
        if out_of_time or out_of_attempts:
            return ModelUnavailableError(
                f"{order.model} was not to be had: {failures + 1} attempts in {now - first:.0f} s; the last: {said}"
            )
        return ApplicationError(
            said,
            {"status": status},
            type="ModelUnavailable",
            next_retry_delay=timedelta(seconds=delay),
        )


def _says_limit(error: Exception) -> bool:
    return isinstance(error, Unavailable) and (error.status == TOO_MANY_REQUESTS or error.retry_after is not None)


def _failed(heart: Heartbeat) -> tuple[float, int]:
    """When the call was first not answered, and how often it has asked in vain.

    They ride in the heartbeat's details, which are there on the next attempt. Time that the call waited for a worker is
    not the endpoint's fault and does not count, nor does an attempt that asked nothing.
    """
    first = heart.details[0] if heart.details else time.time()
    failures = heart.details[1] if len(heart.details) > 1 else activity.info().attempt - 1
    return first, failures
