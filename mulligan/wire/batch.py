"""Model calls in batches: the signals between a run and its collector, and the activities of both (docs/batch.md).

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.values import ErrorInfo
from mulligan.wire.model_call import ModelAnswer, ModelCall

PREPARE_BATCH_CALL, READ_BATCH_ANSWER = "prepare_batch_call", "read_batch_answer"
SUBMIT_BATCH, POLL_BATCH, DELIVER_BATCH = "submit_batch", "poll_batch", "deliver_batch"
DELETE_BATCH_FILES = "delete_batch_files"
"""Temporal's activity types."""
BATCH_COLLECTOR, BATCH_WORKFLOW = "MulliganBatchCollector", "MulliganBatch"
"""Temporal's workflow types."""
COLLECTOR_PREFIX = "mulligan-batch-"
"""How the workflow ids of all collectors and batches begin."""
ADD_CALL, REMOVE_CALL, BATCH_ANSWERED = "add_call", "remove_call", "batch_answered"
"""Temporal's signal names: the first two of the collector, the last one of a run."""


class GatherLimits(BaseModel):
    """When a file is full: requests, bytes, or seconds since its first request.

    `poll`: seconds until a batch is polled first.
    """

    count: int
    bytes: int
    seconds: float
    poll: float


class BatchedCall(BaseModel):
    """A request that waits for its batch.

    `key`: of the request, the batch's custom_id. `ref`: of the line of its file in the content storage, whose length is
    `size`; `tenant`: whose content that is. `workflow_id`: where the answer goes.
    """

    key: str
    ref: str
    size: int
    workflow_id: str
    tenant: str | None = optional_field()


class AddCall(BaseModel):
    """The signal `add_call`."""

    call: BatchedCall
    limits: GatherLimits


class PrepareBatchCall(ModelCall):
    """Input of `prepare_batch_call`. `number`: of the request in its step, from 1. `plain`: without what was refused."""

    number: int = optional_field(1)
    plain: bool = optional_field(False)


class PreparedBatchCall(BaseModel):
    """Result of `prepare_batch_call`. `collector`: the workflow id of the collector."""

    added: AddCall
    collector: str


class BatchAnswer(BaseModel):
    """The signal `batch_answered`: the `ref` of the line with the answer in the content storage, or why there is none.

    `status`: the HTTP status of an `error`, where there is one.
    """

    key: str
    batch: str = optional_field("")
    ref: str | None = optional_field()
    error: ErrorInfo | None = optional_field()
    status: int | None = optional_field()


class ReadBatchAnswer(PrepareBatchCall):
    """Input of `read_batch_answer`. `started`: when the request was prepared, in seconds since the epoch."""

    uncached: int | None = optional_field()
    answer: BatchAnswer
    started: float


class BatchOutcome(BaseModel):
    """Result of `read_batch_answer`: the model's answer, or the `error` after which the request may be sent again.

    `plain`: it is sent again at once, without what the model has refused.
    """

    answer: ModelAnswer | None = optional_field()
    error: ErrorInfo | None = optional_field()
    plain: bool = optional_field(False)


class CollectorState(BaseModel):
    """Input of the collector: the model (`provider:NAME`), and what it had gathered before it continued as new.

    `since`: when the oldest request came, in seconds since the epoch. `batches`: how many it has begun.
    """

    model: str
    calls: list[BatchedCall] = optional_field([])
    limits: GatherLimits | None = optional_field()
    since: float | None = optional_field()
    batches: int = optional_field(0)


class BatchInput(BaseModel):
    """Input of a batch's workflow, and of `submit_batch`. `name`: unique, in the batch's metadata at the provider."""

    model: str
    name: str
    calls: list[BatchedCall]
    poll: float


class BatchProgress(BaseModel):
    """Result of `submit_batch` and `poll_batch`: the provider's batch, whose `status` is the provider's word."""

    id: str
    status: str
    input_file: str | None = optional_field()
    output_file: str | None = optional_field()
    error_file: str | None = optional_field()
    errors: list[ErrorInfo] = optional_field([])
    """Why it failed as a whole: `kind` is the provider's code."""
    refused: dict[str, ErrorInfo] = optional_field({})
    """The numbers of the lines at fault, from "1", and why."""


class DeliverBatch(BaseModel):
    """Input of `deliver_batch`: answers to all calls of a batch. `error`, `status`: why there was no batch."""

    model: str
    calls: list[BatchedCall]
    batch: BatchProgress | None = optional_field()
    error: ErrorInfo | None = optional_field()
    status: int | None = optional_field()


class BatchFiles(BaseModel):
    """Input of `poll_batch` (its `id`) and of `delete_batch_files` (its `files`)."""

    model: str
    id: str
    files: list[str] = optional_field([])


WORDS = FeatureWords(
    activities=(PREPARE_BATCH_CALL, READ_BATCH_ANSWER, SUBMIT_BATCH, POLL_BATCH, DELIVER_BATCH, DELETE_BATCH_FILES),
    signals=(ADD_CALL, REMOVE_CALL, BATCH_ANSWERED),
)
