"""Sends an update to a run, and says what came of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.errors import UpdateRefusedError, error_of

__all__ = ["RunEndedError", "UpdateTimeoutError", "UpdateTooLargeError", "send_update"]

UPDATE_TIMEOUT = 20.0
"""Seconds until a run must have answered an update. Its worker may have to replay it first."""


MOST_BYTES = 2_000_000
"""Bytes of an update as JSON. Temporal carries 2 MiB, and says nothing of what is larger that a client could act on."""


class UpdateTooLargeError(UpdateRefusedError):
    """The update is larger than Temporal carries: it was not sent."""


class RunEndedError(Exception):
    """The run has ended, so nothing can be sent to it."""


class UpdateTimeoutError(Exception):
    """No worker of the run has answered in time: the run may or may not have received the update."""


async def send_update(
    handle: WorkflowHandle[Any, Any], update: str, fields: dict[str, Any], *, keep_none: bool = False
) -> dict[str, Any]:
    """Send an update, without the fields that are None unless `keep_none`, and return its result.

    Raises:
        UpdateRefusedError: the run refuses it; the message is the run's own sentence.
        UpdateTooLargeError: it has more than `MOST_BYTES`.
        RunEndedError: the run has ended.
        UpdateTimeoutError: no worker of the run answered within `UPDATE_TIMEOUT`.
        RPCError: Temporal does not answer, or refuses the update.
    """
    argument = {name: value for name, value in fields.items() if keep_none or value is not None}
    # Images and files are stored elsewhere by the client (start_interceptor.py), or refused by it.
    parts = [{**each, "data": ""} if isinstance(each, dict) else each for each in argument.get("content") or ()]
    measured = {**argument, "content": parts}
    size = len(json.dumps(measured, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    if size > MOST_BYTES:
        raise UpdateTooLargeError(f"The update {update!r} has {size:,} bytes as JSON, but {MOST_BYTES:,} are the most.")
    try:
        async with asyncio.timeout(UPDATE_TIMEOUT):
            result: dict[str, Any] = await handle.execute_update(update, argument)
            return result
    except WorkflowUpdateFailedError as error:
        refused, cause = error_of(error), error.cause
        if isinstance(refused, UpdateRefusedError):
            raise refused from None
        raise UpdateRefusedError(cause.message if isinstance(cause, FailureError) else str(cause)) from None
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        raise UpdateTimeoutError(f"No worker of the run answered within {UPDATE_TIMEOUT:g} s.") from None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RunEndedError("The run has ended.") from None
        raise
