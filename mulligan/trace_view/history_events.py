"""Reads the events of a workflow history: which of an agent's activities ran, with their decoded inputs and results."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import BaseModel
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from mulligan.features import OWN
from mulligan.wire.agent_facts import OPEN_RUN, OpenedRun, OpenRun
from mulligan.wire.model_call import CALL_MODEL, ModelAnswer, ModelCall
from mulligan.wire.run_context import CALL_MEMO
from mulligan.wire.run_end import FINISH_RUN, RecordedEnd
from mulligan.wire.tool_call import CALL_TOOL, RECORD_FAILED_CALL, CallTool, RecordedFailure, ToolOutcome
from mulligan.wire.updates import RECORD_DECISION, RecordedDecision

Types: TypeAlias = Mapping[str, tuple[type[BaseModel] | None, type[BaseModel] | None]]
"""The input and the result of each activity type. None: history does not contain it, or it is not needed."""
OF_TRACE: Types = {
    OPEN_RUN: (OpenRun, OpenedRun),
    CALL_MODEL: (ModelCall, ModelAnswer),
    CALL_TOOL: (CallTool, ToolOutcome),
    RECORD_FAILED_CALL: (None, RecordedFailure),
    RECORD_DECISION: (None, RecordedDecision),
    FINISH_RUN: (None, RecordedEnd),
    **{name: types for each in OWN for name, types in (each.events or {}).items() if types is not None},
}
_ENDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "completed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "cancelled",
}
_CLOSES = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
}
_LOCAL_ACTIVITY = "core_local_activity"
"""The marker with which Temporal's Core SDK records a local activity: its times and its result, but not its input."""


class Unreadable(ValueError):
    """A payload of the history cannot be decoded here, most often because it is encrypted."""


@dataclass
class Activity:
    """An activity, with what its history contains. Times are seconds since the epoch.

    `ended` is None while it runs. `failure` is that of its last failed attempt, if any. `waits`: what an activity that does
    not run yet waits for. `sequence`: the SDK's number, which counts up in a workflow run.
    """

    type: str
    event_id: int
    scheduled: float
    request: Any = None
    started: float | None = None
    ended: float | None = None
    status: str = "running"
    attempt: int = 1
    outcome: Any = None
    failure: BaseException | None = None
    waits: str = ""
    local: bool = False
    sequence: int = 0


@dataclass
class Execution:
    """One workflow run. `closed`: when it ended, None while it is open. `children`: its sub-agents' workflow and run ids.

    `continued_from`: the id of the run before it; "": it is the first.
    """

    workflow_id: str
    run_id: str
    workflow_type: str = ""
    continued_from: str = ""
    activities: list[Activity] = field(default_factory=list)
    children: list[tuple[str, str]] = field(default_factory=list)
    closed: float | None = None
    status: str = "running"


class Reader:
    """Reads the events of one workflow run, in their order. Raises Unreadable for a payload that cannot be decoded.

    `types`: the activities that are read; those of a trace if it is left out.
    """

    def __init__(self, converter: DataConverter, execution: Execution, types: Types = OF_TRACE) -> None:
        self._converter, self._types = converter, types
        self._execution = execution
        self._open: dict[int, Activity] = {}
        self._sub_agents: set[int] = set()

    async def read(self, event: HistoryEvent) -> Activity | None:
        """Read an event; returns the activity that it schedules or ends, if that is one of ours."""
        kind, at = event.event_type, seconds(event.event_time)
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            begin = event.workflow_execution_started_event_attributes
            self._execution.workflow_type = begin.workflow_type.name
            self._execution.continued_from = begin.continued_execution_run_id
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            return await self._scheduled(event, at)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            if (activity := self._open.get(started.scheduled_event_id)) is not None:
                activity.started, activity.attempt = at, started.attempt
        elif kind in _ENDS:
            return await self._ended(event, at)
        elif kind == EventType.EVENT_TYPE_MARKER_RECORDED:
            return await self._marked(event, at)
        elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            if CALL_MEMO in event.start_child_workflow_execution_initiated_event_attributes.memo.fields:
                self._sub_agents.add(event.event_id)
        elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            begun = event.child_workflow_execution_started_event_attributes
            if begun.initiated_event_id in self._sub_agents:
                self._execution.children.append((begun.workflow_execution.workflow_id, begun.workflow_execution.run_id))
        elif kind in _CLOSES:
            self._execution.closed, self._execution.status = at, _CLOSES[kind]
        return None

    async def failure(self, failure: Failure) -> BaseException:
        """A failure, decoded. Temporal's converter changes its argument, so it gets a copy."""
        try:
            return await self._converter.decode_failure(copy.deepcopy(failure))
        except Exception as error:
            raise Unreadable(str(error)) from error

    async def _scheduled(self, event: HistoryEvent, at: float) -> Activity | None:
        scheduled = event.activity_task_scheduled_event_attributes
        shape = self._types.get(scheduled.activity_type.name)
        if shape is None:
            return None
        request = await self._decoded(scheduled.input, shape[0])
        sequence = int(scheduled.activity_id) if scheduled.activity_id.isdigit() else 0
        activity = Activity(scheduled.activity_type.name, event.event_id, at, request, sequence=sequence)
        self._open[event.event_id] = activity
        self._execution.activities.append(activity)
        return activity

    async def _ended(self, event: HistoryEvent, at: float) -> Activity | None:
        ended = getattr(event, str(event.WhichOneof("attributes")))
        activity = self._open.pop(ended.scheduled_event_id, None)
        if activity is None:
            return None
        activity.ended, activity.status, activity.event_id = at, _ENDS[event.event_type], event.event_id
        if activity.status == "completed":
            activity.outcome = await self._decoded(ended.result, self._types[activity.type][1])
        elif activity.status != "cancelled":
            activity.failure = await self.failure(ended.failure)
        return activity

    async def _marked(self, event: HistoryEvent, at: float) -> Activity | None:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name != _LOCAL_ACTIVITY or "data" not in marker.details:
            return None
        data = json.loads(marker.details["data"].payloads[0].data)
        shape = self._types.get(data["activity_type"])
        if shape is None or data.get("backoff"):  # another attempt follows, and has its own marker
            return None
        ended = _when(data.get("complete_time")) or at
        activity = Activity(data["activity_type"], event.event_id, _when(data.get("original_schedule_time")) or ended)
        activity.started, activity.ended, activity.attempt = activity.scheduled, ended, data.get("attempt") or 1
        activity.local, activity.sequence = True, data.get("seq") or 0
        if marker.HasField("failure"):
            activity.status, activity.failure = "failed", await self.failure(marker.failure)
        else:
            activity.status, activity.outcome = "completed", await self._decoded(marker.details["result"], shape[1])
        self._execution.activities.append(activity)
        return activity

    async def _decoded(self, payloads: Payloads, shape: type[BaseModel] | None) -> Any:
        """The first payload; None if it is not a `shape`, as for a user's own activity of the same name."""
        if not payloads.payloads:
            return None
        try:
            [value] = await self._converter.decode(payloads.payloads[:1])
        except Exception as error:
            raise Unreadable(str(error)) from error
        if shape is None:
            return value
        try:
            return shape.model_validate(value)
        except ValueError:
            return None


def type_and_message(failure: BaseException | None) -> tuple[str, str]:
    """A failure's type and message."""
    if failure is None:
        return "", ""
    kind = failure.type if isinstance(failure, ApplicationError) else None
    return kind or type(failure).__name__, getattr(failure, "message", None) or str(failure)


def seconds(timestamp: Any) -> float:
    """A protobuf timestamp, since the epoch."""
    return float(timestamp.seconds + timestamp.nanos / 1e9)


def _when(time: dict[str, int] | None) -> float | None:
    return time["seconds"] + time["nanos"] / 1e9 if time else None
