"""What an endpoint's failure means for the attempt: another one, after which delay; or that patience is spent."""

from __future__ import annotations

import random
import time
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import Heart
from activities.providers.protocol import Unavailable
from mulligan.compaction import CompactConversation
from mulligan.errors import ModelUnavailableError
from mulligan.handoff import ModelCall

LONGEST_DELAY = 60.0
"""Seconds between two attempts at most, unless the endpoint asks for more by Retry-After."""


def try_again(order: ModelCall | CompactConversation, error: Exception, heart: Heart) -> ApplicationError:
    """The failure that Temporal retries, with the delay to wait; or the typed one when patience is spent."""
    info = activity.info()
    now = time.time()
    # The first failure's time rides in the heartbeat's details, which are there on the next attempt. Time that the
    # call waited for a worker is not the endpoint's fault and does not count.
    first = heart.details[0] if heart.details else now
    heart.say(first)
    status = error.status if isinstance(error, Unavailable) else None
    said = f"{error}" if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
    asked = error.retry_after if isinstance(error, Unavailable) else None
    delay = asked if asked is not None else min(LONGEST_DELAY, 2.0 ** (info.attempt - 1))
    # Jitter upwards only: many runs that were told "in 5 s" must not all come back in the same instant.
    delay *= 1 + random.random() / 4  # noqa: S311 - not for secrets
    out_of_time = now + delay - first > order.patience
    out_of_attempts = order.attempts is not None and info.attempt >= order.attempts
    if out_of_time or out_of_attempts:
        return ModelUnavailableError(
            f"{order.model} was not to be had: {info.attempt} attempts in {now - first:.0f} s; the last: {said}"
        )
    return ApplicationError(
        said,
        {"status": status},
        type="ModelUnavailable",
        next_retry_delay=timedelta(seconds=delay),
    )
