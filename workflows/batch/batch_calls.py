"""Carries out a model call as a request in a batch (docs/batch.md).

An activity stores the request. A signal, which Temporal delivers once, hands it to the collector of its model. The run then
waits for a signal with the answer, and takes nothing of a worker. An activity reads the answer.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, CancelledError, FailureError, is_cancelled_exception

from mulligan.errors import ModelUnavailableError
from mulligan.wire.batch_call import (
    ADD_CALL,
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
from mulligan.wire.ui_summary import ui_summary
from mulligan.workflows import dispatch, limits
from mulligan.workflows.activity_result import read_result
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.deferred.deferred_run import to_its_end
from mulligan.workflows.people.inbox import Inbox

__all__ = ["BatchCalls"]


class BatchCalls:
    """The model call of one step of an agent."""

    def __init__(self, inbox: Inbox, route: AgentRoute) -> None:
        self._inbox, self._route = inbox, route

    async def answer(self, request: ModelCall) -> ModelAnswer:
        """The answer to a model call. Failed entries are sent again, in another batch.

        Raises:
            ModelRequestError, ModelUnavailableError: as for an ordinary call of the model.
            CancelledError: the run was stopped. A request that is not submitted yet is withdrawn.
        """
        number, failures, plain = 1, 0, False
        while True:
            started = workflow.time()
            asked = PrepareBatchCall(**dict(request), number=number, plain=plain)
            answer = await self._wait(asked)
            outcome = await self._read(asked, answer, started)
            if outcome.answer is not None:
                return outcome.answer
            number += 1
            if outcome.plain:
                plain = True
                continue
            failures += 1
            if failures >= (request.attempts or limits.BATCH_TRIES):
                message = outcome.error.message if outcome.error else "it failed"
                raise ModelUnavailableError(
                    f"{request.model} was unavailable: {failures} batches had no answer; the last: {message}"
                )
            await self._pause(min(limits.BATCH_RETRY_LONGEST, limits.BATCH_RETRY_FIRST * 2.0 ** (failures - 1)))

    async def _wait(self, asked: PrepareBatchCall) -> BatchAnswer:
        """Hand the request to its collector, and wait for the answer. A collector that has ended is started again."""
        wait = self._inbox.batch
        prepared = None
        try:
            while True:
                if self._inbox.stop is not None:
                    raise CancelledError("The run was stopped.")
                prepared = await self._schedule(
                    PREPARE_BATCH_CALL, asked, PreparedBatchCall, limits.PREPARE_BATCH_TIMEOUT
                )
                wait.begin(prepared.added.call.key)
                if await _signal(prepared.collector, ADD_CALL, prepared.added):
                    break
                await self._pause(limits.COLLECTOR_RETRY)
            await workflow.wait_condition(lambda: wait.answer is not None or self._inbox.stop is not None)
            if wait.answer is None:
                raise CancelledError("The run was stopped.")
            return wait.answer
        except (asyncio.CancelledError, FailureError) as error:
            if prepared is not None and is_cancelled_exception(error):
                # Also if it was cancelled while it signalled: the collector may have the request.
                await to_its_end(_signal(prepared.collector, REMOVE_CALL, prepared.added.call.key))
            raise
        finally:
            wait.end()

    async def _read(self, asked: PrepareBatchCall, answer: BatchAnswer, started: float) -> BatchOutcome:
        # A worker that has the conversation in its cache needs no messages; others query the run for them.
        fields = dict(asked.model_copy(update={"new": None, "known": None}))
        read = ReadBatchAnswer(**fields, answer=answer, started=started)
        return await self._schedule(READ_BATCH_ANSWER, read, BatchOutcome, limits.READ_BATCH_TIMEOUT)

    async def _schedule(
        self,
        activity: str,
        request: PrepareBatchCall,
        result_type: type[dispatch.Result],
        limit: timedelta,
    ) -> dispatch.Result:
        async def schedule(queue: str | None) -> dispatch.Result:
            raw: RawValue = await workflow.execute_activity(
                activity,
                request,
                result_type=RawValue,
                task_queue=queue,
                schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else None,
                start_to_close_timeout=limit,
                heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
                retry_policy=limits.model_retry(None),
                priority=self._route.priority,
                summary=ui_summary(f"step {request.step}: {request.model.partition(':')[2]} in a batch"),
            )
            return read_result(activity, raw, result_type)

        try:
            return await self._route.run(schedule)
        except ActivityError as error:
            dispatch.raise_model_error(request, error)

    async def _pause(self, seconds: float) -> None:
        try:
            await workflow.wait_condition(
                lambda: self._inbox.stop is not None, timeout=seconds, timeout_summary="until the next batch"
            )
        except TimeoutError:
            return


async def _signal(collector: str, name: str, argument: object) -> bool:
    """Signal a collector. Returns whether it was there."""
    try:
        await workflow.get_external_workflow_handle(collector).signal(name, argument)
    except FailureError as error:
        if is_cancelled_exception(error):
            raise
        return False
    return True
