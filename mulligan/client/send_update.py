"""Sends an update to a run, and says what came of it."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from typing import Any

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.start_run import run_before
from mulligan.errors import UpdateRefusedError, error_of

UPDATE_TIMEOUT = 20.0
"""Seconds until a run must have answered an update, however often it is sent. Its worker may have to replay it first."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds until an update is sent again; each pause is up to twice the one before it."""
MOST_RUNS_BACK = 20
"""The number of earlier workflow runs that are searched for the answer to an update of a run that has ended."""
_SENT_AGAIN = {
    RPCStatusCode.RESOURCE_EXHAUSTED,  # too many updates of the run are in progress, or it continues as new
    RPCStatusCode.ABORTED,  # the server has dropped the update
    RPCStatusCode.FAILED_PRECONDITION,  # the workflow task with it has failed
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.UNKNOWN,  # a connection that breaks off
    RPCStatusCode.INTERNAL,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
}


MOST_BYTES = 2_000_000
"""Bytes of an update as JSON. Temporal carries 2 MiB, and says nothing of what is larger that a client could act on."""


class UpdateTooLargeError(UpdateRefusedError):
    """The update is larger than Temporal carries: it was not sent."""


class RunEndedError(Exception):
    """The run has ended, so nothing can be sent to it."""


class UpdateTimeoutError(Exception):
    """The run has not answered in time: it may or may not have received the update.

    Attributes:
        pushed_back: Whether Temporal has pushed the update back, or was not reached; else no worker has answered.
    """

    def __init__(self, message: str, *, pushed_back: bool) -> None:
        super().__init__(message)
        self.pushed_back = pushed_back


async def send_update(
    client: Client,
    run_id: str,
    update: str,
    fields: dict[str, Any],
    *,
    keep_none: bool = False,
    update_id: str | None = None,
) -> dict[str, Any]:
    """Send an update, without the fields that are None unless `keep_none`, and return its result.

    What the server pushes back, or leaves without an answer, is sent again with the same id: the run carries it out once.
    `update_id`: the id by which the run recognizes a repeated update; None: a new id.

    Raises:
        UpdateRefusedError: the run refuses it; the message is the run's own sentence.
        UpdateTooLargeError: it has more than `MOST_BYTES`.
        RunEndedError: the run has ended.
        UpdateTimeoutError: the run has not answered within `UPDATE_TIMEOUT`.
        RPCError: Temporal refuses the update.
    """
    argument = {name: value for name, value in fields.items() if keep_none or value is not None}
    # Images and files are stored elsewhere by the client (start_interceptor.py), or refused by it.
    parts = [{**each, "data": ""} if isinstance(each, dict) else each for each in argument.get("content") or ()]
    measured = {**argument, "content": parts}
    size = len(json.dumps(measured, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    if size > MOST_BYTES:
        raise UpdateTooLargeError(f"The update {update!r} has {size:,} bytes as JSON; the limit is {MOST_BYTES:,}.")
    update_id, pause, pushed_back = update_id or uuid.uuid4().hex, _FIRST_PAUSE, None
    try:
        async with asyncio.timeout(UPDATE_TIMEOUT):
            while True:
                try:
                    result: dict[str, Any] = await _send(client, run_id, update, argument, update_id)
                    return result
                except RPCError as error:
                    if error.status not in _SENT_AGAIN:
                        raise
                    pushed_back = error
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - not for secrets
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        if pushed_back is None:
            raise UpdateTimeoutError(
                f"No worker of the run has answered within {UPDATE_TIMEOUT:g} s.", pushed_back=False
            ) from None
        raise UpdateTimeoutError(
            f"Temporal has pushed this back, or not answered, for {UPDATE_TIMEOUT:g} s ({pushed_back.message}).",
            pushed_back=True,
        ) from None
    except WorkflowUpdateFailedError as error:
        refused, cause = error_of(error), error.cause
        if isinstance(refused, UpdateRefusedError):
            raise refused from None
        raise UpdateRefusedError(cause.message if isinstance(cause, FailureError) else str(cause)) from None


async def _send(client: Client, run_id: str, update: str, argument: Any, update_id: str) -> Any:
    """Send the update once.

    Raises:
        RunEndedError: the run has ended, and none of the workflow runs before its last one knows the update either.
    """
    try:
        try:
            return await client.get_workflow_handle(run_id).execute_update(update, argument, id=update_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return await _answer_before(client, run_id, update_id)
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        # The SDK raises it in place of the error of the request, or of the cancellation of this task.
        raise error.__cause__ or error from None


async def _answer_before(client: Client, run_id: str, update_id: str) -> Any:
    """The answer of an earlier workflow run of the chain: the run may have continued as new since, and then ended."""
    before = None
    for _ in range(MOST_RUNS_BACK):
        if not (before := await run_before(client, run_id, before)):
            break
        handle = client.get_workflow_handle(run_id, run_id=before)
        try:
            return await handle.get_update_handle(update_id, workflow_run_id=before).result()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
    raise RunEndedError("The run has ended.")
