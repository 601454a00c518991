"""A batch at its provider: submit its requests, poll it, deliver its answers to their runs, delete its files."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.activities.batch.batch_providers import batch_provider, contents_for
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.models._http_errors import PERMANENT_ERROR_CODES
from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models.checked_reply import checked_id
from mulligan.activities.models.protocol import ProviderBatches, Unavailable
from mulligan.activities.services import Services
from mulligan.client.content_store import ChangedContentError, MissingContentError
from mulligan.client.worker_versions import unpin
from mulligan.errors import ModelRequestError
from mulligan.values import ErrorInfo
from mulligan.wire.batch import (
    BATCH_ANSWERED,
    DELETE_BATCH_FILES,
    DELIVER_BATCH,
    POLL_BATCH,
    SUBMIT_BATCH,
    BatchAnswer,
    BatchedCall,
    BatchFiles,
    BatchInput,
    BatchProgress,
    DeliverBatch,
)

_log = logging.getLogger(__name__)
METADATA = "mulligan_batch"
"""The key in a batch's metadata of its name."""
OLDEST_BATCH = 26 * 3_600.0
"""Seconds after which a batch has ended, in whatever way: an earlier attempt has not created an older one."""
SIGNALS = 20
"""How many answers are stored and sent to their runs at the same time."""
NOT_FOUND = 404
LOST = "lost"
MOST_ERRORS = 20
MOST_REFUSED = 500
"""Lines at fault in one result, which has at most 2 MB. The requests of the other lines are sent again."""
BAD_REQUEST = 400


@dataclass(frozen=True)
class SubmitBatchActivities:
    """The activities `submit_batch`, `poll_batch`, `deliver_batch` and `delete_batch_files`."""

    services: Services

    @property
    def all(self) -> list[Callable[..., Any]]:
        """The activities that a worker registers."""
        return [self.submit_batch, self.poll_batch, self.deliver_batch, self.delete_batch_files]

    @activity.defn(name=SUBMIT_BATCH)
    async def submit_batch(self, request: BatchInput) -> BatchProgress:
        """Upload the requests and create their batch, unless an earlier attempt has: it is found by its metadata.

        Raises:
            ModelRequestError: the provider refuses the file or the batch. Temporal does not retry.
            ApplicationError: Temporal retries.
        """
        part = batch_provider(self.services, request.model)
        batches, info = part.batches, activity.info()
        since = info.scheduled_time.timestamp() - OLDEST_BATCH
        async with heartbeating():
            if info.workflow_id and info.workflow_run_id:
                # A batch may take a day, and runs of any version may wait for it.
                await unpin(activity.client(), info.workflow_id, info.workflow_run_id)
            try:
                batch = await batches.find(METADATA, request.name, since)
                if batch is not None:
                    return _progress(batch)
                with tempfile.TemporaryDirectory(prefix="mulligan-batch-") as folder:
                    file = Path(folder) / "requests.jsonl"
                    with file.open("wb") as lines:
                        for call in request.calls:
                            lines.write(await self._line(call))
                    if not file.stat().st_size:
                        return BatchProgress(id="", status=LOST)  # else the empty file would be refused
                    uploaded = await batches.upload(file, request.name.rpartition("-")[2] or "batch")
                try:
                    created = await batches.create(uploaded, part.batch_path, {METADATA: request.name})
                except ModelRequestError:
                    await self._delete(batches, uploaded)
                    raise
            except Unavailable as error:
                raise _retried(error) from error
        return _progress(created)

    async def _delete(self, batches: ProviderBatches, file: str) -> None:
        """Delete the requests of a batch that was refused. If that fails as well, the file stays at the provider."""
        try:
            await batches.delete_file(file)
        except (Unavailable, ModelRequestError) as error:
            _log.warning("The file %s of a refused batch stays at the provider: %s", file, error)

    async def _line(self, call: BatchedCall) -> bytes:
        """The stored request; nothing if it is missing: its run is sent no answer, and stores it again."""
        try:
            return await contents_for(self.services, call.tenant).get(call.ref)
        except (MissingContentError, ChangedContentError) as error:
            _log.warning("The request %s is left out of its batch: %s", call.key, error)
            return b""

    @activity.defn(name=POLL_BATCH)
    async def poll_batch(self, request: BatchFiles) -> BatchProgress:
        """Read the state of a batch. `lost`: the provider does not have it any more.

        Raises:
            ApplicationError: Temporal retries; also where the provider refuses, as an operator may mend the key.
        """
        try:
            async with heartbeating():
                return _progress(await batch_provider(self.services, request.model).batches.read(request.id))
        except (Unavailable, ModelRequestError) as error:
            if isinstance(error, ModelRequestError) and error.status == NOT_FOUND:
                return BatchProgress(id=request.id, status=LOST)
            raise _retried(error) from error

    @activity.defn(name=DELIVER_BATCH)
    async def deliver_batch(self, request: DeliverBatch) -> int:
        """Send each request's answer, or why it has none, to its run. Returns how many have an answer.

        It can be repeated: a run takes the first answer to the request that it waits for, and ignores others.

        Raises:
            ApplicationError: Temporal retries; also where the provider refuses, as an operator may mend the key.
        """
        waiting = {call.key: call for call in request.calls}
        files = [request.batch.output_file, request.batch.error_file] if request.batch else []
        failures: list[Exception] = []
        async with heartbeating():
            for file in filter(None, files):
                failures += await self._deliver_file(request, file, waiting)
            answered = len(request.calls) - len(waiting)
            failures += await self._in_parallel(
                [self._send(call, _without_answer(call, request)) for call in waiting.values()]
            )
            if failures:
                raise failures[0]
        return answered

    async def _deliver_file(self, request: DeliverBatch, file: str, waiting: dict[str, BatchedCall]) -> list[Exception]:
        batches = batch_provider(self.services, request.model).batches
        chunk: list[Any] = []
        failures: list[Exception] = []
        try:
            async for line in batches.lines(file):
                call = waiting.pop(_custom_id(line), None)
                if call is None:
                    continue
                chunk.append(self._store_and_send(call, line, request.batch.id if request.batch else ""))
                if len(chunk) == SIGNALS:
                    full, chunk = chunk, []
                    failures += await self._in_parallel(full)
        except (Unavailable, ModelRequestError) as error:
            if not (isinstance(error, ModelRequestError) and error.status == NOT_FOUND):
                raise _retried(error) from error
            _log.warning("The file %s is gone: the requests that it answers are sent again.", file)
        finally:
            failures += await self._in_parallel(chunk)
        return failures

    async def _store_and_send(self, call: BatchedCall, line: bytes, batch: str) -> None:
        ref = await contents_for(self.services, call.tenant).put(line)
        await self._send(call, BatchAnswer(key=call.key, batch=batch, ref=ref))

    async def _send(self, call: BatchedCall, answer: BatchAnswer) -> None:
        try:
            await activity.client().get_workflow_handle(call.workflow_id).signal(BATCH_ANSWERED, answer)
        except RPCError as error:
            if error.status == RPCStatusCode.INVALID_ARGUMENT:  # it has too many signals: no later attempt succeeds
                _log.warning("The run %s is not sent its answer %s: %s", call.workflow_id, call.key, error.message)
            elif error.status != RPCStatusCode.NOT_FOUND:  # it has ended, or was deleted
                raise

    async def _in_parallel(self, coroutines: Sequence[Any]) -> list[Exception]:
        """Carry all out, as one run's failure must not hold up the others'; returns the failures."""
        failures: list[Exception] = []
        for first in range(0, len(coroutines), SIGNALS):
            ended = await asyncio.gather(*coroutines[first : first + SIGNALS], return_exceptions=True)
            failures += [each for each in ended if isinstance(each, Exception)]
        return failures

    @activity.defn(name=DELETE_BATCH_FILES)
    async def delete_batch_files(self, request: BatchFiles) -> None:
        """Delete a batch's files at the provider, which would keep them. A file that it refuses to delete stays.

        Raises:
            ApplicationError: Temporal retries.
        """
        batches = batch_provider(self.services, request.model).batches
        for file in request.files:
            try:
                await batches.delete_file(file)
            except ModelRequestError as error:
                if error.status != NOT_FOUND:
                    _log.warning("The file %s of batch %s stays at the provider: %s", file, request.id, error.message)
            except Unavailable as error:
                raise _retried(error) from error


def _progress(batch: dict[str, Any]) -> BatchProgress:
    """The state of a batch, from the provider's JSON."""
    data = (batch.get("errors") or {}).get("data") if isinstance(batch.get("errors"), dict) else None
    errors = [each for each in data or [] if isinstance(each, dict)]
    at_lines = [each for each in errors if isinstance(each.get("line"), int)]
    lines = {str(each["line"]): _info(each) for each in at_lines[:MOST_REFUSED]}
    try:
        return BatchProgress(
            id=checked_id(batch.get("id"), "a batch"),
            status=as_text(batch.get("status"))[:100],
            input_file=_file(batch, "input_file_id"),
            output_file=_file(batch, "output_file_id"),
            error_file=_file(batch, "error_file_id"),
            errors=[_info(each) for each in errors[:MOST_ERRORS] if not isinstance(each.get("line"), int)],
            refused=lines,
        )
    except Unavailable as error:
        raise _retried(error) from error


def _file(batch: dict[str, Any], field: str) -> str | None:
    return checked_id(batch[field], "a file") if batch.get(field) else None


def _info(error: dict[str, Any]) -> ErrorInfo:
    return ErrorInfo(kind=as_text(error.get("code"))[:100], message=as_text(error.get("message"))[:500])


def _without_answer(call: BatchedCall, request: DeliverBatch) -> BatchAnswer:
    """What a run gets for a request without an answer: why, and the HTTP status, which decides if it is sent again."""
    batch = request.batch
    if batch is None:
        return BatchAnswer(key=call.key, error=request.error, status=request.status)
    number = str(request.calls.index(call) + 1)
    if (at_fault := batch.refused.get(number)) is not None:
        return BatchAnswer(key=call.key, batch=batch.id, error=at_fault, status=BAD_REQUEST)
    reason = "; ".join(f"{each.kind}: {each.message}" for each in batch.errors[:3])
    error = ErrorInfo(
        kind=f"batch_{batch.status}",
        message=f"the batch {batch.id} has no answer to the request: it is {batch.status}"
        + f" ({reason})" * bool(reason),
    )
    is_permanent = any(each.kind in PERMANENT_ERROR_CODES for each in batch.errors)
    return BatchAnswer(key=call.key, batch=batch.id, error=error, status=BAD_REQUEST if is_permanent else None)


def _custom_id(line: bytes) -> str:
    """The key of the request that a line answers; "" if it has none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return as_text(entry.get("custom_id")) if isinstance(entry, dict) else ""


def _retried(error: Unavailable | ModelRequestError) -> ApplicationError:
    return ApplicationError(str(error), type="ModelUnavailable")
