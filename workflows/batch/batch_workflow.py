"""`MulliganBatch`: one batch at the provider, from its submission to the delivery of its answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from mulligan.errors import ModelRequestError, error_of
from mulligan.values import ErrorInfo
from mulligan.wire.batch import (
    BATCH_WORKFLOW,
    DELETE_BATCH_FILES,
    DELIVER_BATCH,
    POLL_BATCH,
    SUBMIT_BATCH,
    BatchFiles,
    BatchInput,
    BatchProgress,
    DeliverBatch,
)
from mulligan.wire.read_payload import read_payloads
from mulligan.workflows import limits
from mulligan.workflows.activity_result import read_result

_ENDED = ("completed", "failed", "expired", "cancelled", "lost")
POLL_TIMEOUT = timedelta(seconds=90)


@workflow.defn(name=BATCH_WORKFLOW, sandboxed=False)
class BatchWorkflow:
    """Sends one batch. No request is lost: activities are tried until they succeed, or until the provider refuses."""

    @workflow.run
    async def run(self, start: RawValue) -> dict[str, Any]:
        """Return {`batch`: the provider's id, `status`, `calls`, `answered`}."""
        [batch] = read_payloads(workflow.payload_converter(), [start.payload], [BatchInput])
        deliver = DeliverBatch(model=batch.model, calls=batch.calls)
        try:
            deliver.batch = await self._until_ended(batch)
        except ActivityError as error:
            refused = error_of(error)
            if not isinstance(refused, ModelRequestError):
                raise
            deliver.error = ErrorInfo(kind=type(refused).__name__, message=refused.message)
            deliver.status = refused.status
        answered: int = await workflow.execute_activity(
            DELIVER_BATCH,
            deliver,
            result_type=int,
            start_to_close_timeout=limits.DELIVER_BATCH_TIMEOUT,
            heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
            retry_policy=limits.BATCH_RETRY,
        )
        ended = deliver.batch
        if ended is not None:
            await self._delete_files(batch.model, ended)
        return {
            "batch": ended.id if ended else None,
            "status": ended.status if ended else "refused",
            "calls": len(batch.calls),
            "answered": answered,
        }

    async def _until_ended(self, batch: BatchInput) -> BatchProgress:
        progress = await _read(SUBMIT_BATCH, batch, limits.SUBMIT_BATCH_TIMEOUT)
        interval = batch.poll
        while progress.status not in _ENDED:
            await workflow.sleep(interval, summary=f"next poll of {progress.id}")
            interval = min(interval * limits.BATCH_POLL_GROWTH, max(batch.poll, limits.BATCH_POLL_LONGEST))
            progress = await _read(POLL_BATCH, BatchFiles(model=batch.model, id=progress.id), POLL_TIMEOUT)
        return progress

    async def _delete_files(self, model: str, ended: BatchProgress) -> None:
        files = [file for file in (ended.input_file, ended.output_file, ended.error_file) if file]
        try:
            await workflow.execute_activity(
                DELETE_BATCH_FILES,
                BatchFiles(model=model, id=ended.id, files=files),
                start_to_close_timeout=POLL_TIMEOUT * 3,
                schedule_to_close_timeout=timedelta(hours=1),
                retry_policy=limits.BATCH_RETRY,
            )
        except ActivityError:
            workflow.logger.warning("Files of batch %s stay at the provider.", ended.id)


async def _read(activity: str, request: BatchInput | BatchFiles, limit: timedelta) -> BatchProgress:
    raw: RawValue = await workflow.execute_activity(
        activity,
        request,
        result_type=RawValue,
        start_to_close_timeout=limit,
        heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
        retry_policy=limits.BATCH_RETRY,
    )
    return read_result(activity, raw, BatchProgress)
