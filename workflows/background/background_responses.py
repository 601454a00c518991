"""Carries out model calls as background responses of the provider (docs/background.md).

An activity creates the response, and its id is in history before anything waits. Then timers wait, at growing intervals,
and a short activity after each reads the response, until it has ended. No activity runs in between. A webhook of the
provider ends the wait at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, CancelledError, FailureError, is_cancelled_exception

from mulligan.errors import ModelUnavailableError, error_of
from mulligan.model_name import ModelName
from mulligan.values import ErrorInfo
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.background_response import (
    END_RESPONSE,
    READ_RESPONSE,
    START_RESPONSE,
    EndResponse,
    ReadResponse,
    ResponseState,
    StartedResponse,
    StartResponse,
)
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.ui_summary import ui_summary
from mulligan.workflows import dispatch, limits
from mulligan.workflows.activity_result import read_result
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.background.open_response import OpenResponse
from mulligan.workflows.deferred.deferred_run import to_its_end
from mulligan.workflows.people.inbox import Inbox

__all__ = ["BackgroundResponses", "is_background"]

PROVIDER = "openai"
"""The provider of the models that have background responses."""


def is_background(model: str, facts: AgentFacts) -> bool:
    """Whether a model (`provider:NAME`) is called in the background."""
    return facts.background_timeout is not None and ModelName.parse(model).provider == PROVIDER


class BackgroundResponses:
    """The background responses of one agent, one at a time.

    `continue_if_due` continues the workflow as new if that is due. `open`: the response that a step waits for.
    """

    def __init__(self, inbox: Inbox, route: AgentRoute, continue_if_due: Callable[[], None]) -> None:
        self._inbox, self._route, self._continue_if_due = inbox, route, continue_if_due
        self.open: OpenResponse | None = None

    def load(self, state: object) -> None:
        """Wait on for the response of the workflow run before this one."""
        self.open = OpenResponse.model_validate(state)
        self._inbox.response.begin(self.open.id)

    async def answer(self, request: ModelCall, facts: AgentFacts) -> ModelAnswer:
        """The answer to a model call: of the response that is open, or of a new one.

        Raises:
            ModelRequestError, ModelUnavailableError: as for an ordinary call of the model.
            CancelledError: the run was stopped or cancelled; the response is cancelled at the provider.
        """
        one = self.open = self.open or OpenResponse(fallback=request.fallback)
        self._inbox.response.begin(one.id)
        try:
            while True:
                if one.id is None:
                    await self._start(one, request, facts)
                state = await self._until_ended(one, request, facts)
                if state.answer is not None:
                    await self._end(one, request, cancel=False)
                    return state.answer
                await self._prepare_next(one, state, request)
        except (asyncio.CancelledError, FailureError) as error:
            if one.id is not None:
                await to_its_end(self._end(one, request, cancel=True, error=_unrecorded(error)))
            raise
        finally:
            self.open = None
            self._inbox.response.end()

    async def _start(self, one: OpenResponse, request: ModelCall, facts: AgentFacts) -> None:
        if self._inbox.stop is not None:
            raise CancelledError("The run was stopped.")
        start = StartResponse(**dict(request), number=one.number, failed=one.failed)
        if one.first_failure is not None:
            start.patience = max(0.0, request.patience - (workflow.time() - one.first_failure))
        if request.attempts is not None:
            start.attempts = request.attempts - one.failed
        try:
            started = await dispatch.run_model_activity(
                START_RESPONSE,
                start,
                StartedResponse,
                facts=facts.model_copy(update={"model_attempts": start.attempts}),
                inbox=self._inbox,
                route=self._route,
                summary=ui_summary(f"step {request.step}: {request.model.partition(':')[2]} in the background"),
            )
        except ActivityError as error:
            dispatch.raise_model_error(request, error)
        one.created(started, workflow.time())
        self._inbox.response.begin(one.id)

    async def _until_ended(self, one: OpenResponse, request: ModelCall, facts: AgentFacts) -> ResponseState:
        """Poll until the response has ended, in whatever way.

        Raises:
            CancelledError: the run was stopped, and the grace time of the model call is over.
            ModelUnavailableError: the provider could not be asked for longer than the agent's patience.
        """
        limit = facts.background_timeout or 0.0
        while True:
            await self._pause(one, one.started + limit)
            self._inbox.response.forget_end()
            state = await self._read(one, request)
            now = workflow.time()
            if state.status not in ("running", "unknown"):
                return state
            if state.status == "running":
                one.is_running(state)
            else:
                one.unreachable = one.unreachable or now
                one.interval = max(one.interval, min(state.retry_after or 0.0, limits.POLL_AFTER_LIMIT))
                if now - one.unreachable > request.patience:
                    message = state.error.message if state.error else ""
                    raise ModelUnavailableError(
                        f"{request.model}: the response {one.id} could not be read for {now - one.unreachable:.0f} s; "
                        f"the last: {message}"
                    )
            # These limits decide what a run schedules: another value needs a patch, for runs in flight.
            if one.stopped_at is not None and now >= one.stopped_at + limits.STOP_GRACE.total_seconds():
                raise CancelledError("The run was stopped.")
            if now >= one.started + limit:
                error = ErrorInfo(kind="TimeoutError", message=f"no answer within {limit:g} s")
                await self._end(one, request, cancel=True, error=error)
                return ResponseState(status="failed", error=error)
            self._continue_if_due()

    async def _pause(self, one: OpenResponse, deadline: float) -> None:
        """Wait for the time of the next poll, a webhook, or a request to stop. It takes nothing of a worker."""
        now, was_stopped = workflow.time(), self._inbox.stop is not None
        if was_stopped:
            one.stopped_at = one.stopped_at or now
            deadline = min(deadline, one.stopped_at + limits.STOP_GRACE.total_seconds())
        try:
            await workflow.wait_condition(
                lambda: self._inbox.response.has_ended or (self._inbox.stop is not None and not was_stopped),
                timeout=max(0.001, min(now + one.interval, deadline) - now),
                timeout_summary=ui_summary(f"next poll of {one.id}"),
            )
        except TimeoutError:
            one.interval = min(one.interval * limits.POLL_GROWTH, limits.POLL_LONGEST)

    async def _read(self, one: OpenResponse, request: ModelCall) -> ResponseState:
        assert one.id is not None
        # A worker that has the conversation in its cache needs no messages; they would be in history for each poll.
        fields = dict(request.model_copy(update={"new": None, "known": None}))
        read = ReadResponse(**fields, id=one.id, attempt=one.attempt, started=one.started, cursor=one.cursor)

        async def schedule(queue: str | None) -> ResponseState:
            raw: RawValue = await workflow.execute_activity(
                READ_RESPONSE,
                read,
                result_type=RawValue,
                task_queue=queue,
                schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else None,
                start_to_close_timeout=limits.READ_RESPONSE_TIMEOUT + limits.MODEL_ATTEMPT_MARGIN,
                heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
                retry_policy=limits.model_retry(None),
                priority=self._route.priority,
                summary=ui_summary(f"read {one.id}"),
            )
            return read_result(READ_RESPONSE, raw, ResponseState)

        try:
            return await self._route.run(schedule)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            dispatch.raise_model_error(request, error)

    async def _prepare_next(self, one: OpenResponse, state: ResponseState, request: ModelCall) -> None:
        """Wait until the next response may be created, after one that has failed or has expired.

        Raises:
            ModelUnavailableError: the agent's patience or attempts are used up.
        """
        if state.status != "expired" and one.id is not None:
            await self._end(one, request, cancel=False)
        one.id = None
        now, message = workflow.time(), state.error.message if state.error else "it failed"
        one.failures, one.first_failure = one.failures + 1, one.first_failure or now
        growth = min(limits.POLL_LONGEST, 2.0**one.failures)
        delay = max(growth * workflow.random().uniform(0.5, 1.5), state.retry_after or 0.0)
        is_out_of_time = now + delay - one.first_failure > request.patience
        if is_out_of_time or (request.attempts is not None and one.attempt >= request.attempts):
            raise ModelUnavailableError(
                f"{request.model} was unavailable: {one.attempt} attempts, {one.number} background responses; the last: "
                f"{message}"
            )
        one.next()
        self._inbox.response.begin(None)
        try:
            await workflow.wait_condition(
                lambda: self._inbox.stop is not None,
                timeout=delay,
                timeout_summary="until the next background response",
            )
        except TimeoutError:
            return

    async def _end(
        self, one: OpenResponse, request: ModelCall, *, cancel: bool, error: ErrorInfo | None = None
    ) -> None:
        """Delete the response at the provider; if nobody needs it, cancel it before. A failure does not fail the run."""
        assert one.id is not None
        end = EndResponse(
            where=request.where,
            model=request.model,
            id=one.id,
            step=request.step,
            attempt=one.attempt,
            started=one.started,
            fallback=request.fallback,
            cancel=cancel,
            error=error,
            input_tokens=one.input_tokens,
            written=one.cursor.length if one.cursor is not None else 0,
        )

        async def schedule(queue: str | None) -> None:
            await workflow.execute_activity(
                END_RESPONSE,
                end,
                task_queue=queue,
                schedule_to_close_timeout=limits.END_RESPONSE_TOTAL_TIMEOUT,
                start_to_close_timeout=limits.END_RESPONSE_TIMEOUT,
                retry_policy=limits.END_RESPONSE_RETRY,
                priority=self._route.priority,
                summary=ui_summary(f"{'cancel' if cancel else 'delete'} {one.id}"),
            )

        try:
            await self._route.run(schedule, waits=False)
        except ActivityError as failed:
            if is_cancelled_exception(failed):
                raise
            workflow.logger.warning("The response %s could not be deleted at the provider.", one.id)
        one.id = None


def _unrecorded(error: BaseException) -> ErrorInfo | None:
    """The error of a response's span. None: the activity that has read that the response failed has written the span."""
    if is_cancelled_exception(error):
        # An activity that ran then, such as a poll, is an ActivityError with this cause.
        message = "" if isinstance(error, ActivityError) else str(error)
        return ErrorInfo(kind=CancelledError.__name__, message=message or "The run was cancelled.")
    kind = type(error_of(error) or error).__name__
    return ErrorInfo(kind=kind, message=str(error)) if kind == ModelUnavailableError.__name__ else None
