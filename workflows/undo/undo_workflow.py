"""`MulliganUndo`: undoes the calls of one run that has ended, and of its sub-agents' runs, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType, is_cancelled_exception

from mulligan.errors import InvalidRunInputError
from mulligan.values import ErrorInfo
from mulligan.wire.read_payload import read_payloads
from mulligan.wire.undo import (
    PLAN_UNDO,
    UNDO_CALL,
    UNDO_QUERY,
    UNDO_WORKFLOW,
    CallToUndo,
    UndoCall,
    UndoList,
    UndoOutcome,
    UndoRun,
    UndoSchedule,
)
from mulligan.workflows import limits
from mulligan.workflows.agent_route import AgentRoute, is_declined
from mulligan.workflows.scheduling import Schedule, run_activity

_PLAN_TIMEOUT = timedelta(minutes=5)
"""Runs are read by queries, for which a worker replays each of them: a long one takes seconds."""
READ_MARGIN = timedelta(seconds=70)
"""Added to the time of an undo: the activity reads the call's arguments and result first, and gives up after a minute."""
SCHEDULES: Mapping[str, Schedule] = {
    PLAN_UNDO: Schedule(timeout=_PLAN_TIMEOUT, has_heartbeat=True, is_routed=False),
    # Nobody waits for a worker that does not exist any more: the list says so.
    UNDO_CALL: Schedule(
        has_heartbeat=True,
        waits=False,
        cancellation=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    ),
}
_CUT_OFF = ErrorInfo(
    kind="undo_cut_off",
    message="The undo was ended while it called this. It may go on, or have done its work; with `lost`, it is called again.",
)


@workflow.defn(name=UNDO_WORKFLOW, sandboxed=False)
class UndoWorkflow:
    """Undoes calls in the reverse of the order in which they settled. Each is tried as often as its tool allows.

    The workflow never fails for a call: its result says of each what became of it.
    """

    def __init__(self) -> None:
        self._list = UndoList()
        self._routes: dict[str, AgentRoute] = {}
        workflow.set_query_handler(UNDO_QUERY, lambda: self._list)

    @workflow.run
    async def run(self, start: RawValue) -> dict[str, Any]:
        """Return the UndoList.

        Raises:
            ApplicationError: the run cannot be read, and so nothing was undone.
        """
        try:
            [request] = read_payloads(workflow.payload_converter(), [start.payload], [UndoRun])
        except ValueError as error:
            raise InvalidRunInputError(f"The input of an undo cannot be read: {error}") from None
        try:
            self._list = await run_activity(PLAN_UNDO, request, UndoList, SCHEDULES[PLAN_UNDO], summary="plan")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            cause = error.cause
            reason = cause.message if isinstance(cause, ApplicationError) else f"The run could not be read: {cause}"
            raise ApplicationError(reason, type="UndoError", non_retryable=True) from None
        for call in self._list.calls:
            if not await self._settle(call, request):
                break
        return self._list.model_dump(mode="json")

    async def _settle(self, call: CallToUndo, request: UndoRun) -> bool:
        """Undo a call, unless it is undone already or cannot be. Returns whether the undo goes on with the next call."""
        if call.state in ("undone", "no_undo") or call.schedule is None:
            return True
        if call.lost is not None and not request.lost:
            call.error = call.error or ErrorInfo(
                kind=call.lost,
                message="It is not known whether the call has done its work; with `lost`, such calls are undone, too.",
            )
            return True
        if call.error == _CUT_OFF and not request.lost:
            return True
        # Whoever ends this workflow now reads this: the undo may have been started.
        call.state, call.error = "failed", _CUT_OFF
        call.error = await self._undo(call, call.schedule)
        call.state = "undone" if call.error is None else "failed"
        return call.state == "undone" or request.go_on

    async def _undo(self, call: CallToUndo, schedule: UndoSchedule) -> ErrorInfo | None:
        """Why a call is not undone; None: it is."""
        queue = schedule.task_queue
        row = replace(
            SCHEDULES[UNDO_CALL],
            timeout=timedelta(seconds=schedule.timeout) + limits.TOOL_ATTEMPT_MARGIN + READ_MARGIN,
            retry=limits.tool_retry(schedule.attempts),
            queue=queue,
            queue_timeout=timedelta(seconds=schedule.queue_timeout) if schedule.queue_timeout else None,
            is_routed=queue is None,
        )
        route = self._routes.setdefault(call.agent, AgentRoute(lambda: False))
        request = UndoCall(call=call.model_copy(update={"error": None}), has_own_queue=queue is not None)
        try:
            outcome = await run_activity(
                UNDO_CALL, request, UndoOutcome, row, route=route, summary=f"undo {call.name} {call.call_id}"
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                call.error = _lost(call, error, queue)  # the function has ended
                raise
            return _lost(call, error, queue)
        return outcome.error


def _lost(call: CallToUndo, error: ActivityError, queue: str | None) -> ErrorInfo:
    """Why an undo has failed whose worker could not say it."""
    timeout = error.cause.type if isinstance(error.cause, TimeoutError) else None
    if is_declined(error):
        return ErrorInfo(kind="tool_lost", message=f"No worker serves the agent {call.agent!r}, so it was not started.")
    if timeout is TimeoutType.SCHEDULE_TO_START:
        return ErrorInfo(kind="tool_lost", message=f"No worker of the task queue {queue!r} has started it in time.")
    if timeout is TimeoutType.START_TO_CLOSE:
        return ErrorInfo(kind="tool_timeout", message="It did not end in time. It may or may not have done its work.")
    return ErrorInfo(
        kind="tool_lost",
        message="Its worker died, stopped answering, or shut down. It may or may not have done its work.",
    )
