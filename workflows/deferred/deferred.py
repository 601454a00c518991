"""Runs calls of deferred tools: the body, the wait for the result, and what follows from how that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, Field
from temporalio import workflow
from temporalio.exceptions import ActivityError

from mulligan.wire.checked_result import MOST_SECONDS
from mulligan.wire.deferred import CANCEL_DEFERRED, SETTLE_DEFERRED, DeferredEnd, SettleDeferred
from mulligan.wire.times import iso
from mulligan.wire.tool_call import ToolOutcome, without_arguments
from mulligan.wire.ui_summary import ui_summary
from mulligan.workflows import limits
from mulligan.workflows.clean_up import clean_up, is_run_cancelled
from mulligan.workflows.deferred.complete_handler import CompleteHandler
from mulligan.workflows.deferred.deferred_wait import DeferredWait
from mulligan.workflows.feature import Feature
from mulligan.workflows.finish_despite_cancellation import finish_despite_cancellation
from mulligan.workflows.scheduling import RECORD, NoResult, Schedule
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.workflow_agents import WorkflowAgents

_ENDED = {
    "result": "it was completed",
    "error": "it was completed",
    "timeout": "its time limit passed",
    "time": "it waited for a point in time, which came",
    "message": "it waited for a point in time, and a message ended that",
    "stopped": "the run was stopped",
    "cancelled": "the run was cancelled",
}


class DeferredFacts(BaseModel):
    """What was pinned for a deferred tool."""

    timeout: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None
    on_cancel: bool = False


class Deferred(Feature):
    """The deferred calls of one agent."""

    schedules: ClassVar = {
        SETTLE_DEFERRED: RECORD,
        CANCEL_DEFERRED: Schedule(
            timeout=limits.CANCEL_DEFERRED_TIMEOUT + timedelta(seconds=5),
            total=limits.CANCEL_DEFERRED_TOTAL_TIMEOUT,
            retry=limits.CANCEL_DEFERRED_RETRY,
            has_heartbeat=True,
            waits=False,
        ),
    }
    option_type = DeferredFacts
    waits: ClassVar = (DeferredWait,)

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the handler of the update that brings a result."""
        CompleteHandler(agents)

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run the body, unless an earlier workflow run has, and wait for the result."""
        waits = self.agent.waits
        wait = waits.carried(DeferredWait, call.call.id)
        if wait is None and self.feature not in call.pinned:
            ended = await then(call)
            if ended.deferred is None:
                return ended
            wait = self._wait(call)
            wait.timeout = ended.deferred.timeout
            self._begin(call, wait, ended)
        wait = wait or self._wait(call)
        try:
            with waits.entered(wait):
                end, outcome = await self._end_of(call, wait, then)
        except asyncio.CancelledError:
            if wait.deferral is None:
                self._remember(wait, "the run was cancelled")
                raise
            await finish_despite_cancellation(self._settle(call, wait, "cancelled"))
            raise
        if end is None:
            assert outcome is not None
            return await self._failed(call, wait, outcome)
        return await self._settle(call, wait, end)

    def _pinned(self, call: StepCall) -> Mapping[str, Any]:
        """What was pinned for the tool; of one that was not deferred when the turn opened, what makes its worker look."""
        pinned: Mapping[str, Any] = call.pinned.get(self.feature, {"on_cancel": True})
        return pinned

    def _wait(self, call: StepCall) -> DeferredWait:
        return DeferredWait(
            key=call.call.id,
            call=without_arguments(call.call),
            trace_id=self.agent.context.trace.split("-")[1],
            started=workflow.time(),
            timeout=self._pinned(call).get("timeout"),
        )

    async def _end_of(
        self, call: StepCall, wait: DeferredWait, then: Callable[[StepCall], Awaitable[ToolOutcome]]
    ) -> tuple[DeferredEnd | None, ToolOutcome | None]:
        """How the call has ended; or the outcome of its body, if that has failed."""
        if wait.deferral is None:
            outcome = await then(call)
            if outcome.deferred is None:
                return None, outcome
            self._begin(call, wait, outcome)
        summary = f"{'end of' if wait.is_timer else 'time limit of'} {call.call.name}"
        is_in_time = await self.agent.waits.until(
            wait,
            lambda: wait.completion is not None or self._interruption(wait) is not None,
            at=wait.ends_at,
            summary=ui_summary(summary),
        )
        if wait.completion is not None:
            return "error" if wait.completion.is_error else "result", None
        if not is_in_time:
            return "time" if wait.is_timer else "timeout", None
        return self._interruption(wait) or "cancelled", None

    def _begin(self, call: StepCall, wait: DeferredWait, outcome: ToolOutcome) -> None:
        """The body has returned, and the wait for the result begins."""
        wait.since, wait.deferral, wait.attempts = workflow.time(), outcome.deferred, outcome.attempts
        call.record.attempts, call.record.deferred = outcome.attempts, wait.started_value()
        self.agent.conversation.event_log.tool_call_deferred(call.index)

    def _interruption(self, wait: DeferredWait) -> DeferredEnd | None:
        if self.agent.is_stopped:
            return "stopped"
        return "message" if wait.is_timer and self.agent.inbox.messages else None

    async def _failed(self, call: StepCall, wait: DeferredWait, outcome: ToolOutcome) -> ToolOutcome:
        """The body has failed. If the call was completed before that, the model reads the result beside the failure."""
        completion = wait.completion
        self._remember(wait, "its tool failed" if completion is None else _ENDED["result"])
        if completion is None or outcome.failure is not None:
            return outcome
        return await self._record(call, wait, "error" if completion.is_error else "result", body=outcome)

    async def _settle(self, call: StepCall, wait: DeferredWait, end: DeferredEnd) -> ToolOutcome:
        """End what was started if nobody waits for it any more, write the span, and return the result."""
        self._remember(wait, _ENDED[end])
        call.is_stopped = end == "stopped"
        if end in ("stopped", "cancelled") and self._pinned(call).get("on_cancel") and not wait.is_timer:
            await self._cancel(call, wait, end)
        return await self._record(call, wait, end)

    def _remember(self, wait: DeferredWait, how: str) -> None:
        self.agent.waits.remember(wait, f"{how} at {iso(workflow.time())}")

    async def _cancel(self, call: StepCall, wait: DeferredWait, end: DeferredEnd) -> None:
        queue = call.facts.task_queue if call.facts else None
        schedule = replace(self.schedules[CANCEL_DEFERRED], queue=queue, is_routed=queue is None)
        request, summary = self._request(call, wait, end), f"end {call.call.name}"
        if is_run_cancelled():
            name = f"end-{call.call.id}"
            await clean_up(self.agent, CANCEL_DEFERRED, request, name=name, summary=summary, queue=queue)
            return
        try:
            await self.agent.activity(CANCEL_DEFERRED, request, NoResult, summary=summary, schedule=schedule)
        except ActivityError:
            workflow.logger.warning("What %s has started could not be ended.", call.call.name)

    async def _record(
        self, call: StepCall, wait: DeferredWait, end: DeferredEnd, body: ToolOutcome | None = None
    ) -> ToolOutcome:
        request = self._request(call, wait, end)
        request.body = body
        return await self.agent.activity(SETTLE_DEFERRED, request, ToolOutcome, summary=f"{call.call.name}: {end}")

    def _request(self, call: StepCall, wait: DeferredWait, end: DeferredEnd) -> SettleDeferred:
        request, now = call.request, workflow.time()
        assert request is not None
        completion, stop = wait.completion, self.agent.inbox.stop
        return SettleDeferred.like(
            request,
            workflow_id=workflow.info().workflow_id,
            call=wait.call,
            started=wait.started,
            end=end,
            attempts=wait.attempts,
            text=wait.deferral.text if wait.deferral else "",
            result=completion.result if completion else None,
            error=completion.error if completion else None,
            timeout=wait.timeout,
            seconds_waited=now - wait.since,
            seconds_left=max(0.0, (wait.ends_at or now) - now),
            reason=stop.reason if stop else None,
            max_bytes=limits.share_of_results(len(self.agent.calls), local=True),
        )
