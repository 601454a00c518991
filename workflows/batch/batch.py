"""Carries out a model call as a request in a batch (docs/batch.md).

An activity stores the request. A signal, which Temporal delivers once, hands it to the collector of its model. The run then
waits for a signal with the answer, and uses no resources of a worker. An activity reads the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError, FailureError, is_cancelled_exception

from mulligan.errors import ModelUnavailableError
from mulligan.wire.batch import (
    ADD_CALL,
    BATCH_ANSWERED,
    PREPARE_BATCH_CALL,
    READ_BATCH_ANSWER,
    REMOVE_CALL,
    BatchAnswer,
    BatchOutcome,
    PrepareBatchCall,
    PreparedBatchCall,
    ReadBatchAnswer,
)
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.workflows import limits
from mulligan.workflows.batch.batch_collector import BatchCollector
from mulligan.workflows.batch.batch_workflow import BatchWorkflow
from mulligan.workflows.feature import Feature
from mulligan.workflows.finish_despite_cancellation import finish_despite_cancellation
from mulligan.workflows.model_errors import raise_model_error
from mulligan.workflows.scheduling import Result, Schedule
from mulligan.workflows.waits import Wait, WaitKind

if TYPE_CHECKING:
    from mulligan.workflows.workflow_agents import WorkflowAgents


@dataclass(kw_only=True, eq=False)
class BatchWait(Wait):
    """A model call that waits for its answer from a batch.

    `number`: of the request in its step; `failures`: how many batches had no answer; `plain`: whether the request is sent
    without what the model has refused. `request`: the key of the request that is in a batch, None until it is. `collector`:
    the workflow that has it. `started`: when it was prepared, in seconds since the epoch. `patience`: of the model call.
    """

    name: ClassVar[str] = "batch"
    ended_by: ClassVar[WaitKind | None] = "model"

    model: str
    step: int
    patience: float
    number: int = 1
    failures: int = 0
    plain: bool = False
    request: str | None = None
    collector: str = ""
    started: float = 0.0
    answer: BatchAnswer | None = None

    @property
    def may_leave(self) -> bool:
        """A pause before the request is handed over is not carried over."""
        return self.request is not None

    @property
    def retried_for(self) -> float | None:
        """The patience, until the request is handed over."""
        return self.patience if self.request is None else None

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The model, the step and the request."""
        del others, key
        where = f" in a batch, request {self.request}," if self.request is not None else ""
        return f"waiting for `{self.model}` (step {self.step}){where}", ""


class BatchFacts(BaseModel):
    """`models`: those that are called in batches."""

    models: list[str]


WORKFLOWS = (BatchCollector, BatchWorkflow)


class Batch(Feature):
    """The model calls of an agent whose models are called in batches, one at a time."""

    facts_type = BatchFacts
    schedules: ClassVar = {
        PREPARE_BATCH_CALL: Schedule(
            timeout=limits.PREPARE_BATCH_TIMEOUT, retry=limits.model_retry(None), has_heartbeat=True
        ),
        READ_BATCH_ANSWER: Schedule(
            timeout=limits.READ_BATCH_TIMEOUT, retry=limits.model_retry(None), has_heartbeat=True
        ),
    }
    waits: ClassVar = (BatchWait,)

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Receive the answers of batches. The first one to a request that an agent waits for counts."""

        async def batch_answered(argument: Any = None) -> None:
            try:
                answer = BatchAnswer.model_validate(argument)
            except ValidationError:
                return
            await agents.handlers.until_ready()
            for inbox in agents.handlers.inboxes.values():
                for wait in inbox.waits.of(BatchWait):
                    if wait.request == answer.key and wait.answer is None:
                        wait.answer = answer

        if workflow.get_signal_handler(BATCH_ANSWERED) is None:
            workflow.set_signal_handler(BATCH_ANSWERED, batch_answered)

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """The answer to a model call. Failed entries are sent again, in another batch.

        Raises:
            ModelRequestError, ModelUnavailableError: as for an ordinary call of the model.
            CancelledError: the run was stopped. A request that is not submitted yet is withdrawn.
        """
        facts = self.agent.pinned(self, BatchFacts)
        if facts is None or call.model not in facts.models:
            return await then(call)
        wait = self.agent.waits.carried(BatchWait) or BatchWait(
            key="", model=call.model, step=call.step, patience=call.patience
        )
        with self.agent.waits.entered(wait):
            while True:
                request = PrepareBatchCall(**dict(call), number=wait.number, plain=wait.plain)
                answered = await self._wait(wait, request)
                outcome = await self._read(wait, request, answered)
                if outcome.answer is not None:
                    return outcome.answer
                await self._prepare_next(wait, call, outcome)

    async def _wait(self, wait: BatchWait, request: PrepareBatchCall) -> BatchAnswer:
        """Hand the request to its collector, and wait for the answer. A collector that has ended is started again."""
        agent = self.agent
        try:
            while wait.request is None:
                await self._hand_over(wait, request)
            await agent.waits.until(wait, lambda: wait.answer is not None or agent.is_stopped)
            if wait.answer is None:
                raise CancelledError("The run was stopped.")
            return wait.answer
        except (asyncio.CancelledError, FailureError) as error:
            if wait.request is not None and is_cancelled_exception(error):
                # Also if it was cancelled while it signalled: the collector may have the request.
                await finish_despite_cancellation(_signal(wait.collector, REMOVE_CALL, wait.request))
            raise

    async def _hand_over(self, wait: BatchWait, request: PrepareBatchCall) -> None:
        if self.agent.is_stopped:
            raise CancelledError("The run was stopped.")
        wait.started = workflow.time()
        prepared = await self._schedule(PREPARE_BATCH_CALL, request, PreparedBatchCall)
        wait.request, wait.collector, wait.answer = prepared.added.call.key, prepared.collector, None
        wait.since = workflow.time()
        if not await _signal(prepared.collector, ADD_CALL, prepared.added):
            wait.request = None
            await self._pause(wait, limits.COLLECTOR_RETRY)

    async def _read(self, wait: BatchWait, request: PrepareBatchCall, answered: BatchAnswer) -> BatchOutcome:
        # A worker that has the conversation in its cache needs no messages; others query the run for them.
        fields = dict(request.model_copy(update={"new": None, "uncached": None}))
        read = ReadBatchAnswer(**fields, answer=answered, started=wait.started)
        return await self._schedule(READ_BATCH_ANSWER, read, BatchOutcome)

    async def _prepare_next(self, wait: BatchWait, call: ModelCall, outcome: BatchOutcome) -> None:
        wait.number, wait.request, wait.answer = wait.number + 1, None, None
        if outcome.plain:
            wait.plain = True
            return
        wait.failures += 1
        if wait.failures >= (call.attempts or limits.BATCH_TRIES):
            message = outcome.error.message if outcome.error else "it failed"
            raise ModelUnavailableError(
                f"{call.model} was unavailable: {wait.failures} batches had no answer; the last: {message}"
            )
        growth = limits.BATCH_RETRY_FIRST * 2.0 ** (wait.failures - 1)
        await self._pause(wait, min(limits.BATCH_RETRY_LONGEST, growth))

    async def _schedule(self, activity: str, request: PrepareBatchCall, result_type: type[Result]) -> Result:
        summary = f"step {request.step}: {request.model.partition(':')[2]} in a batch"
        try:
            return await self.agent.activity(activity, request, result_type, summary=summary)
        except ActivityError as error:
            raise_model_error(request, error)

    async def _pause(self, wait: BatchWait, seconds: float) -> None:
        at = workflow.time() + seconds
        await self.agent.waits.until(wait, lambda: self.agent.is_stopped, at=at, summary="until the next batch")


async def _signal(collector: str, name: str, argument: object) -> bool:
    """Signal a collector. Returns whether it was there."""
    try:
        await workflow.get_external_workflow_handle(collector).signal(name, argument)
    except FailureError as error:
        if is_cancelled_exception(error):
            raise
        return False
    return True
