"""Requests to Temporal about something that may not be there."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import TypeVar

from temporalio.service import RPCError, RPCStatusCode

MISSING = frozenset({RPCStatusCode.NOT_FOUND})
MISSING_OR_INVALID = MISSING | {RPCStatusCode.INVALID_ARGUMENT}
"""For an id that somebody has typed: Temporal refuses impossible ids."""
T = TypeVar("T")


async def unless_missing(request: Awaitable[T], missing: Collection[RPCStatusCode] = MISSING) -> T | None:
    """The server's answer; None: it does not know what was asked for, for example as its retention is over.

    Raises:
        RPCError: Temporal does not answer, or refuses the request for another reason.
    """
    try:
        return await request
    except RPCError as error:
        if error.status not in missing:
            raise
        return None
