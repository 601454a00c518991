"""Runs a call of a deferred tool: its body, the wait for its result, and what follows from how that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.deferred_call import CANCEL_DEFERRED, SETTLE_DEFERRED, DeferredEnd, SettledCall, SettleDeferred
from mulligan.wire.tool_call import CallTool, ToolOutcome
from mulligan.wire.ui_summary import ui_summary
from mulligan.workflows import dispatch, limits
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.deferred.deferred_calls import DeferredCall
from mulligan.workflows.people.inbox import Inbox

__all__ = ["DeferredRun", "to_its_end"]

T = TypeVar("T")
_ENDED = {
    "result": "it was completed",
    "error": "it was completed",
    "timeout": "its time limit passed",
    "time": "it waited for a point in time, which came",
    "message": "it waited for a point in time, and a message ended that",
    "stopped": "the run was stopped",
    "cancelled": "the run was cancelled",
}


@dataclass(frozen=True, kw_only=True)
class DeferredRun:
    """One call of a deferred tool. `index`: its place in its step; `calls_in_step`: how many that has."""

    request: CallTool
    facts: ToolFacts
    record: CallRecord
    index: int
    calls_in_step: int
    inbox: Inbox
    route: AgentRoute
    log: EventLog

    async def run(self, body: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run the body, and wait for the result. A call that waited in an earlier workflow run waits on."""
        calls, call = self.inbox.deferred, self.request.call
        one = calls.carried(call.id)
        if one is None:
            one = calls.open[call.id] = DeferredCall(
                call=call,
                trace_id=self.request.where.trace.split("-")[1],
                started=workflow.time(),
                timeout=self.facts.deferred_timeout,
            )
            try:
                outcome = await body()
            except asyncio.CancelledError:
                calls.settle(one, _ENDED["cancelled"])
                raise
            if outcome.deferred is None:
                return await self._failed(one, outcome)
            one.since, one.deferral, one.attempts = workflow.time(), outcome.deferred, outcome.attempts
            self.record.attempts, self.record.deferred = outcome.attempts, one.started_value()
            self.log.tool_call_deferred(self.index)
        try:
            end = await calls.wait_for(one, lambda: self._interruption(one))
        except asyncio.CancelledError:
            await to_its_end(self._settle(one, "cancelled"))
            raise
        return await self._settle(one, end)

    def _interruption(self, one: DeferredCall) -> DeferredEnd | None:
        if self.inbox.stop is not None:
            return "stopped"
        return "message" if one.is_timer and self.inbox.messages else None

    async def _failed(self, one: DeferredCall, outcome: ToolOutcome) -> ToolOutcome:
        """The body has failed. If the call was completed before that, the model reads the result beside the failure."""
        completion = one.completion
        self.inbox.deferred.settle(one, "its tool failed" if completion is None else _ENDED["result"])
        if completion is None or outcome.failure is not None:
            return outcome
        return await self._record(one, "error" if completion.is_error else "result", body=outcome)

    async def _settle(self, one: DeferredCall, end: DeferredEnd) -> ToolOutcome:
        """End what was started if nobody waits for it any more, write the span, and return the result."""
        self.inbox.deferred.settle(one, _ENDED[end])
        if end == "stopped":
            self.inbox.deferred.stopped.add(one.call.id)
        if end in ("stopped", "cancelled") and self.facts.on_cancel and not one.is_timer:
            await self._cancel(one, end)
        return await self._record(one, end)

    async def _cancel(self, one: DeferredCall, end: DeferredEnd) -> None:
        request = self._request(one, end)

        async def schedule(queue: str | None) -> None:
            await workflow.execute_activity(
                CANCEL_DEFERRED,
                request,
                task_queue=queue or self.facts.task_queue,
                schedule_to_close_timeout=limits.CANCEL_DEFERRED_TOTAL_TIMEOUT,
                start_to_close_timeout=limits.CANCEL_DEFERRED_TIMEOUT + timedelta(seconds=5),
                heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
                retry_policy=limits.CANCEL_DEFERRED_RETRY,
                priority=self.route.priority,
                summary=ui_summary(f"end {one.call.name}"),
            )

        try:
            await (schedule(None) if self.facts.task_queue else self.route.run(schedule, waits=False))
        except ActivityError:
            workflow.logger.warning("What %s has started could not be ended.", one.call.name)

    async def _record(self, one: DeferredCall, end: DeferredEnd, body: ToolOutcome | None = None) -> ToolOutcome:
        request = self._request(one, end)
        request.body = body
        summary = f"{one.call.name}: {end}"
        settled: SettledCall = await dispatch.record(
            SETTLE_DEFERRED, request, SettledCall, route=self.route, summary=summary
        )
        return ToolOutcome(text=settled.text, error=settled.error, failure=settled.failure, attempts=settled.attempts)

    def _request(self, one: DeferredCall, end: DeferredEnd) -> SettleDeferred:
        request, now = self.request, workflow.time()
        completion, stop = one.completion, self.inbox.stop
        return SettleDeferred(
            where=request.where,
            call=one.call,
            arguments=request.arguments,
            step=request.step,
            digest=request.digest,
            first_key=request.first_key,
            started=one.started,
            end=end,
            attempts=one.attempts,
            text=one.deferral.text if one.deferral else "",
            result=completion.result if completion else None,
            error=completion.error if completion else None,
            limit=one.timeout,
            waited=now - (one.since or now),
            left=max(0.0, (one.until or now) - now),
            reason=stop.reason if stop else None,
            repaired_by=request.repaired_by,
            decision=request.decision,
            metadata=request.metadata,
            mcp=request.mcp,
            max_bytes=limits.share_of_results(self.calls_in_step, local=True),
        )


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a task that is cancelled already, and may be cancelled again."""
    task = asyncio.create_task(coroutine)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
