"""Carries out model calls as background responses of the provider (docs/background.md).

An activity creates the response, and its id is in history before anything waits. Then timers wait, at growing intervals,
and a short activity after each reads the response, until it has ended. No activity runs in between. A webhook of the
provider ends the wait at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, Field
from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError, FailureError, is_cancelled_exception

from mulligan.errors import ModelUnavailableError, error_of
from mulligan.values import ErrorInfo
from mulligan.wire.background import (
    END_RESPONSE,
    READ_RESPONSE,
    START_RESPONSE,
    EndResponse,
    ReadResponse,
    ResponseState,
    StartedResponse,
    StartResponse,
)
from mulligan.wire.checked_result import MOST_SECONDS
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.ui_summary import ui_summary
from mulligan.workflows import limits
from mulligan.workflows.background.open_response import OpenResponse
from mulligan.workflows.background.response_handler import ResponseHandler
from mulligan.workflows.clean_up import clean_up, is_run_cancelled
from mulligan.workflows.feature import Feature
from mulligan.workflows.finish_despite_cancellation import finish_despite_cancellation
from mulligan.workflows.model_errors import raise_model_error
from mulligan.workflows.scheduling import NoResult, Schedule

if TYPE_CHECKING:
    from mulligan.workflows.workflow_agents import WorkflowAgents


class BackgroundFacts(BaseModel):
    """`timeout`: seconds for one response. `models`: those that are called in the background."""

    models: list[str]
    timeout: Annotated[float, Field(ge=0, le=MOST_SECONDS)]


def is_background(model: str, facts: BackgroundFacts | None) -> bool:
    """Whether a model (`provider:NAME`) is called in the background."""
    return facts is not None and model in facts.models


class Background(Feature):
    """The background responses of one agent, one at a time."""

    facts_type = BackgroundFacts
    schedules: ClassVar = {
        START_RESPONSE: Schedule(has_heartbeat=True, calls_model=True),
        READ_RESPONSE: Schedule(
            timeout=limits.READ_RESPONSE_TIMEOUT + limits.MODEL_ATTEMPT_MARGIN,
            retry=limits.model_retry(None),
            has_heartbeat=True,
        ),
        END_RESPONSE: Schedule(
            timeout=limits.END_RESPONSE_TIMEOUT,
            total=limits.END_RESPONSE_TOTAL_TIMEOUT,
            retry=limits.END_RESPONSE_RETRY,
            waits=False,
        ),
    }
    waits: ClassVar = (OpenResponse,)

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the handler of the update that says that a response has ended."""
        ResponseHandler(agents)

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """The answer to a model call: of the response that is open, or of a new one.

        Raises:
            ModelRequestError, ModelUnavailableError: as for an ordinary call of the model.
            CancelledError: the run was stopped or cancelled; the response is cancelled at the provider.
        """
        waits = self.agent.waits
        if not is_background(call.model, self.agent.pinned(self, BackgroundFacts)):
            return await then(call)
        response = waits.carried(OpenResponse) or OpenResponse(
            key="", model=call.model, step=call.step, patience=call.patience
        )
        with waits.entered(response):
            try:
                while True:
                    if response.id is None:
                        await self._start(response, call)
                    state = await self._until_ended(response, call)
                    if state.answer is not None:
                        await self._end(response, call, cancel=False)
                        return state.answer
                    await self._prepare_next(response, state, call)
            except (asyncio.CancelledError, FailureError) as error:
                if response.id is not None:
                    await finish_despite_cancellation(self._end(response, call, cancel=True, error=_unrecorded(error)))
                raise

    async def _start(self, response: OpenResponse, call: ModelCall) -> None:
        if self.agent.is_stopped:
            raise CancelledError("The run was stopped.")
        start = StartResponse(**dict(call), number=response.number, failed=response.failed)
        if response.first_failure is not None:
            start.patience = max(0.0, call.patience - (workflow.time() - response.first_failure))
        if call.attempts is not None:
            start.attempts = call.attempts - response.failed
        summary = f"step {call.step}: {call.model.partition(':')[2]} in the background"
        try:
            started = await self.agent.model_activity(
                START_RESPONSE, start, StartedResponse, summary=summary, attempts=start.attempts
            )
        except ActivityError as error:
            raise_model_error(call, error)
        response.created(started, workflow.time())

    async def _until_ended(self, response: OpenResponse, call: ModelCall) -> ResponseState:
        """Poll until the response has ended, in whatever way.

        Raises:
            CancelledError: the run was stopped, and the grace time of the model call is over.
            ModelUnavailableError: the provider could not be asked for longer than the agent's patience.
        """
        facts = self.agent.pinned(self, BackgroundFacts)
        limit = facts.timeout if facts is not None else 0.0
        while True:
            await self._pause(response, response.started + limit)
            # It was read since: it is polled on if it has not ended after all.
            response.ended = []
            state = await self._read(response, call)
            now = workflow.time()
            if state.status not in ("running", "unknown"):
                return state
            if state.status == "running":
                response.is_running(state)
            else:
                response.unreachable = response.unreachable or now
                response.interval = max(response.interval, min(state.retry_after or 0.0, limits.POLL_AFTER_LIMIT))
                if now - response.unreachable > call.patience:
                    message = state.error.message if state.error else ""
                    seconds = f"{now - response.unreachable:.0f} s"
                    raise ModelUnavailableError(
                        f"{call.model}: the response {response.id} could not be read for {seconds}; the last: {message}"
                    )
            if response.stopped_at is not None and now >= response.stopped_at + limits.STOP_GRACE.total_seconds():
                raise CancelledError("The run was stopped.")
            if now >= response.started + limit:
                error = ErrorInfo(kind="TimeoutError", message=f"no answer within {limit:g} s")
                await self._end(response, call, cancel=True, error=error)
                return ResponseState(status="failed", error=error)

    async def _pause(self, response: OpenResponse, deadline: float) -> None:
        """Wait for the time of the next poll, a webhook, or a request to stop. It uses no resources of a worker."""
        now, was_stopped = workflow.time(), self.agent.is_stopped
        if was_stopped:
            response.stopped_at = response.stopped_at or now
            deadline = min(deadline, response.stopped_at + limits.STOP_GRACE.total_seconds())
        is_in_time = await self.agent.waits.until(
            response,
            lambda: response.has_ended or (self.agent.is_stopped and not was_stopped),
            at=min(now + response.interval, deadline),
            summary=ui_summary(f"next poll of {response.id}"),
        )
        if not is_in_time:
            response.interval = min(response.interval * limits.POLL_GROWTH, limits.POLL_LONGEST)

    async def _read(self, response: OpenResponse, call: ModelCall) -> ResponseState:
        assert response.id is not None
        # A worker that has the conversation in its cache needs no messages; they would be in history for each poll.
        fields = dict(call.model_copy(update={"new": None, "uncached": None}))
        read = ReadResponse(
            **fields, id=response.id, attempt=response.attempts, started=response.started, cursor=response.cursor
        )

        try:
            return await self.agent.activity(READ_RESPONSE, read, ResponseState, summary=f"read {response.id}")
        except ActivityError as error:
            raise_model_error(call, error)

    async def _prepare_next(self, response: OpenResponse, state: ResponseState, call: ModelCall) -> None:
        """Wait until the next response may be created, after a response that has failed or has expired.

        Raises:
            ModelUnavailableError: the agent's patience or attempts are used up.
        """
        if state.status != "expired" and response.id is not None:
            await self._end(response, call, cancel=False)
        response.id = None
        now, message = workflow.time(), state.error.message if state.error else "it failed"
        response.failures, response.first_failure = response.failures + 1, response.first_failure or now
        growth = min(limits.POLL_LONGEST, 2.0**response.failures)
        delay = max(growth * workflow.random().uniform(0.5, 1.5), state.retry_after or 0.0)
        is_out_of_time = now + delay - response.first_failure > call.patience
        if is_out_of_time or (call.attempts is not None and response.attempts >= call.attempts):
            count = f"{response.attempts} attempts, {response.number} background responses"
            raise ModelUnavailableError(f"{call.model} was unavailable: {count}; the last: {message}")
        response.next()
        at = workflow.time() + delay
        summary = "until the next background response"
        await self.agent.waits.until(response, lambda: self.agent.is_stopped, at=at, summary=summary)

    async def _end(
        self, response: OpenResponse, call: ModelCall, *, cancel: bool, error: ErrorInfo | None = None
    ) -> None:
        """Delete the response at the provider; if nobody needs it, cancel it before. A failure does not fail the run."""
        assert response.id is not None
        end = EndResponse(
            where=call.where,
            model=call.model,
            id=response.id,
            step=call.step,
            attempt=response.attempts,
            started=response.started,
            fallback=call.fallback,
            cancel=cancel,
            error=error,
            input_tokens=response.input_tokens,
            written=response.cursor.length if response.cursor is not None else 0,
        )

        summary = f"{'cancel' if cancel else 'delete'} {response.id}"
        if is_run_cancelled():
            await clean_up(self.agent, END_RESPONSE, end, name=f"end-{response.id}", summary=summary)
            response.id = None
            return
        try:
            await self.agent.activity(END_RESPONSE, end, NoResult, summary=summary)
        except ActivityError as failed:
            if is_cancelled_exception(failed):
                raise
            workflow.logger.warning("The response %s could not be deleted at the provider.", response.id)
        response.id = None


def _unrecorded(error: BaseException) -> ErrorInfo | None:
    """The error of a response's span. None: the activity that has read that the response failed has written the span."""
    if is_cancelled_exception(error):
        # An activity that ran then, such as a poll, is an ActivityError with this cause.
        message = "" if isinstance(error, ActivityError) else str(error)
        return ErrorInfo(kind=CancelledError.__name__, message=message or "The run was cancelled.")
    kind = type(error_of(error) or error).__name__
    return ErrorInfo(kind=kind, message=str(error)) if kind == ModelUnavailableError.__name__ else None
