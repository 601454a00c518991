"""Heartbeats of every activity that may take long, so that Temporal notices a dead worker within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from pydantic_core import from_json
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, ResetStickyTaskQueueRequest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from mulligan.client.converter import data_converter
from mulligan.schema.error_text import type_name
from mulligan.schema.json_limits import is_deeper
from mulligan.wire.event_types import ATTEMPT_ENDED, LIVE_TEXT, TOOL_PROGRESS, ProgressMark
from mulligan.wire.shorten import shorten

INTERVAL = 1.5
"""Seconds until the first heartbeat, and between two. The workflow's heartbeat timeout is 5 seconds."""
_ENDED_STARTS = "ended_starts"
DETAILS_BYTES = 100_000
"""Bytes of the details of a heartbeat. Temporal ends an attempt whose heartbeat has more than 2 MB."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[Heartbeat]:
    """Send heartbeats while the body runs."""
    heartbeat = Heartbeat()
    if activity.info().is_local:
        yield heartbeat
        return
    heartbeat.start()
    is_begun = False
    try:
        if lost_attempts():
            await _forget_lost_worker()
        is_begun = True
        yield heartbeat
    except BaseException as error:
        if is_begun:
            heartbeat.send_ended()
        if not isinstance(error, asyncio.CancelledError):
            raise
        details = activity.cancellation_details()
        if details is not None and details.worker_shutdown:
            # The run is not cancelled: Temporal retries on another worker, if the retry policy allows it.
            raise ApplicationError("The worker shut down before it was done.", type="WorkerShutdown") from None
        raise
    finally:
        heartbeat.stop()


async def _forget_lost_worker() -> None:
    """Let any worker get the run's queries and its next task, if the last attempt ended by its heartbeat timeout.

    As a rule its worker had the run in its cache, and the server would wait for it until the sticky timeout. What a
    supervisor reports as lost is another failure: it has done this where it was needed. Living workers keep their caches.
    """
    info, client, seconds = activity.info(), activity.client(), timedelta(seconds=2)
    run = WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "")
    describe = DescribeWorkflowExecutionRequest(namespace=client.namespace, execution=run)
    reset = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=run)
    with suppress(RPCError):  # then they wait, for as long as these calls
        described = await client.workflow_service.describe_workflow_execution(describe, timeout=seconds)
        failures = [each.last_failure for each in described.pending_activities if each.activity_id == info.activity_id]
        if any(each.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT for each in failures):
            await client.workflow_service.reset_sticky_task_queue(reset, timeout=seconds)


def lost_attempts() -> range:
    """Earlier attempts that were lost with their workers, and whose spans no attempt has written yet.

    An attempt writes their spans before its first heartbeat, which says so: a worker that is killed before that leaves them
    to the next attempt, beside its own.
    """
    info = activity.info()
    if info.is_local:
        return range(0)
    marks = [each[ATTEMPT_ENDED] for each in info.heartbeat_details if _is_internal(each) and ATTEMPT_ENDED in each]
    return range(max((mark for mark in marks if isinstance(mark, int)), default=0) + 1, info.attempt)


def lost_starts(heartbeat: Heartbeat) -> int:
    """How many of the starts before this one were lost with their workers.

    The others have ended with an error, which Temporal retries, too: they have called `count_ended_start`.
    """
    return activity.info().attempt - 1 - _ended_starts(heartbeat)


def count_ended_start(heartbeat: Heartbeat) -> None:
    """Count this start as one that was not lost: it ends with an error, of an outage or the shutdown of its worker."""
    heartbeat.send_details({_ENDED_STARTS: _ended_starts(heartbeat) + 1})


def _ended_starts(heartbeat: Heartbeat) -> int:
    counts = [each.get(_ENDED_STARTS) for each in heartbeat.details if isinstance(each, dict)]
    return max((count for count in counts if isinstance(count, int)), default=0)


def attempt_was_abandoned() -> bool:
    """Whether Temporal has given this attempt up: then the next attempt writes its span, and this one must not."""
    details = activity.cancellation_details()
    return details is not None and not (details.cancel_requested or details.worker_shutdown)


class Heartbeat:
    """The heartbeats of one attempt. Their details are available to the next attempt."""

    def __init__(self) -> None:
        info = activity.info()
        self.details: tuple[Any, ...] = tuple(each for each in info.heartbeat_details if not _is_internal(each))
        """The last details that this attempt, or the one before it, sent."""
        self._mark: ProgressMark | None = None
        self._live: tuple[dict[str, Any], ...] = ()
        self._is_stopped = False
        self._sent_at = -INTERVAL
        self._attempt = info.attempt
        self._is_local = activity.info().is_local
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None

    def report_for(self, call_id: str, name: str, step: int) -> None:
        """The details are the progress of a tool call from now on: followers of the run see them as such."""
        self._mark = ProgressMark(call_id=call_id, name=name, step=step, attempt=self._attempt, number=0)

    def send_details(self, *details: Any) -> None:
        """Set new details. They are sent now or, shortly after another heartbeat, with the next. From any thread.

        They are converted to JSON first, because a heartbeat that the SDK cannot encode, or that the server refuses, would
        end the attempt.
        """
        self.details = _sendable(details)
        if self._mark is not None:
            self._mark = self._mark.model_copy(update={"number": self._mark.number + 1})
        if self._is_local:
            return
        try:
            on_own_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_own_loop = False
        if on_own_loop:
            self._send_if_due()
        else:
            self._loop.call_soon_threadsafe(self._send_if_due)

    def send_live(self, live: dict[str, Any]) -> None:
        """Send a heartbeat now with `live`, an object of one field, for the run's followers. Only on the event loop."""
        self._live = (live,)
        if not (self._is_local or self._is_stopped):
            self._send()

    def start(self) -> None:
        """Start to send heartbeats periodically."""
        if self._attempt > 1 or self._next is not None:
            # None at the start of a first attempt: each is a call to the server, and most attempts are short.
            self._send()
        self._next = self._loop.call_later(INTERVAL, self.start)

    def call_later(self, seconds: float, send: Callable[[], None]) -> asyncio.TimerHandle:
        """Call what sends a heartbeat after some seconds, unless the attempt ends before. Only one such call waits."""
        self._later = self._loop.call_later(seconds, send)
        return self._later

    def stop(self) -> None:
        """Stop the heartbeats."""
        self._is_stopped = True
        for timer in (self._next, self._later):
            if timer is not None:
                timer.cancel()

    def send_ended(self) -> None:
        """Tell the next attempt that this one has ended, and writes its own spans."""
        activity.heartbeat(*self.details, *self._live, ended_details(self._attempt))

    def _send(self) -> None:
        self._sent_at = self._loop.time()
        mark = self._mark
        is_reported = mark is not None and mark.number and self.details
        marked = ({TOOL_PROGRESS: mark.model_dump()},) if mark is not None and is_reported else ()
        earlier = (ended_details(self._attempt - 1),) if self._attempt > 1 else ()
        activity.heartbeat(*earlier, *self.details, *self._live, *marked)

    def _send_if_due(self) -> None:
        # The next heartbeat, or the last one, contains the details. A tool may set new ones a thousand times a second.
        if self._loop.time() - self._sent_at >= INTERVAL:
            self._send()


def ended_details(attempt: int) -> dict[str, int]:
    """The details of a heartbeat once the spans of this attempt, and of earlier ones, are written."""
    return {ATTEMPT_ENDED: attempt}


def _sendable(details: tuple[Any, ...]) -> tuple[Any, ...]:
    """The details as JSON values of `DETAILS_BYTES` at most. If they have more, only the last one is kept, and cut."""
    try:
        payload = data_converter.payload_converter.to_payload(list(details))
        values: list[Any] = from_json(payload.data, allow_inf_nan=False)
    except BaseException:  # noqa: BLE001 - a tool may report any object, and the code that writes it may raise anything
        return (f"[a report that cannot be written as JSON: {', '.join(map(type_name, details[:5]))}]",)
    if is_deeper(values):
        return ("[a report that is nested too deeply]",)
    return tuple(values) if len(payload.data) <= DETAILS_BYTES else (shorten(values[-1], DETAILS_BYTES),)


def _is_internal(details: Any) -> bool:
    return isinstance(details, dict) and list(details) in ([ATTEMPT_ENDED], [LIVE_TEXT], [TOOL_PROGRESS])
