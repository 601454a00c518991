"""Counts what a step costs, without clocks: history, requests to Temporal's server, and calls of Python functions.

The cost of a step is the difference between two runs of which one has a step more. All other things that a process does meanwhile
are left out: what it does for no activity and no workflow of the run, polls, and what runs in threads of tools.

A function counts when it is called, not when it goes on; comprehensions, which are functions on Python 3.11 only, never count.
"""

from __future__ import annotations

import asyncio
import dis
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import temporalio
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from mulligan.features import FEATURES
from mulligan.worker.sdk_workarounds.workaround_runner import WorkaroundRunner

ROOT = Path(__file__).parents[2]
OURS = f"{ROOT}/mulligan/"
OF_SDK = f"{Path(temporalio.__file__).parent}/"
MULLIGAN, SDK = "Mulligan", "the SDK"
WORKFLOW, CONVERSIONS = "workflow", "conversions"
"""Parts that are no activity. Conversions are those of payloads outside of workflows and activities."""
OF_FEATURES = [(name, f"{OURS}{room}/{name}/") for room in ("workflows", "activities") for name in FEATURES]
INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
"""Functions up to Python 3.11, and not from 3.12 on."""
REQUESTS = re.compile(r"Start|Signal|Query|Update|Respond|Reset|Terminate|RequestCancel|RecordActivityTaskHeartbeat")
"""The requests that are counted. The others are polls, heartbeats and looks at the server."""
CLEARED = frozenset({"identity", "task_id", "request_id", "history_size_bytes", "version", "event_id"})
"""Fields of events whose values differ from run to run in their length."""
OF_EXPORT = f"{OURS}observe/span_export.py"
"""Not counted: it does more or less, by how fast the collector answers."""
CONVERTER = str(ROOT / "mulligan/client/converter.py")
MOST_TRIES = 10


class Disturbed(Exception):
    """The machine was so busy that something took place which costs more than the step: a retry."""


@dataclass
class Cost:
    """What a run has cost. `calls`: of functions, by the part (`workflow`, or the type of an activity) and whose they are."""

    events: int = 0
    bytes: int = 0
    payloads: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    of_features: Counter[str] = field(default_factory=Counter)
    """The calls of functions in folders of features, by feature."""

    def since(self, other: Cost) -> Cost:
        """The cost beyond that of another run."""
        return Cost(
            self.events - other.events,
            self.bytes - other.bytes,
            self.payloads - other.payloads,
            Counter(_difference(self.requests, other.requests)),
            Counter(_difference(self.calls, other.calls)),
            Counter(_difference(self.of_features, other.of_features)),
        )

    def to_json(self) -> dict[str, int]:
        """One number for each line, so that a change of one is a line of a diff."""
        return {
            "history: events": self.events,
            "history: bytes": self.bytes,
            "history: payloads": self.payloads,
            **{f"requests: {name}": count for name, count in sorted(self.requests.items())},
            **{f"calls: {whose}, {part}": count for (part, whose), count in sorted(self.calls.items())},
        }


def _difference(more: Counter[Any], less: Counter[Any]) -> dict[Any, int]:
    return {name: more[name] - less[name] for name in more | less if more[name] != less[name]}


class Calls:
    """Counts the calls of functions in this thread's activities and in the workflows of this process."""

    def __init__(self) -> None:
        self.by_part: Counter[tuple[str, str]] = Counter()
        self.by_code: Counter[tuple[str, CodeType]] = Counter()
        self._kinds: dict[CodeType, tuple[str | None, int]] = {}

    @contextmanager
    def counted(self, workflow_id: str) -> Iterator[None]:
        """Count those of a run during the block."""
        create = WorkaroundRunner.create_instance

        def create_instance(runner: WorkaroundRunner, det: Any) -> Any:
            instance = create(runner, det)
            if det.info.workflow_id == workflow_id:
                instance.activate = self._in_workflow(instance.activate)  # type: ignore[method-assign, assignment]
            return instance

        WorkaroundRunner.create_instance = create_instance  # type: ignore[method-assign, assignment]
        sys.setprofile(self._in_activity(workflow_id))
        try:
            yield
        finally:
            sys.setprofile(None)
            WorkaroundRunner.create_instance = create  # type: ignore[method-assign]

    def _in_workflow(self, activate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(act: Any) -> Any:
            if any(job.HasField("remove_from_cache") for job in act.jobs):
                return activate(act)
            sys.setprofile(lambda frame, event, _: self._count(WORKFLOW, frame) if event == "call" else None)
            try:
                return activate(act)
            finally:
                sys.setprofile(None)

        return counted

    def _in_activity(self, workflow_id: str) -> Callable[[FrameType, str, Any], None]:
        current = activity._current_context

        def hook(frame: FrameType, event: str, _: Any) -> None:
            if event != "call":
                return
            if (context := current.get(None)) is None:
                if frame.f_code.co_filename == CONVERTER:
                    self._count(CONVERSIONS, frame)
                return
            info = context.info()
            if info.workflow_id == workflow_id:
                self._count(info.activity_type, frame)

        return hook

    def _count(self, part: str, frame: FrameType) -> None:
        code = frame.f_code
        if code not in self._kinds:
            self._kinds[code] = (_kind(code), _first(code))
        kind, first = self._kinds[code]
        if kind == SDK and part != WORKFLOW:
            return  # they depend on how often an activity waits
        if kind is not None and frame.f_lasti <= first:
            self.by_part[part, kind] += 1
            self.by_code[part, code] += 1


def _first(code: CodeType) -> int:
    """Where the frame of a new call is: the first `RESUME`. That of a coroutine which goes on is at a later one."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


def _kind(code: CodeType) -> str | None:
    name = code.co_filename
    if code.co_name in INLINED or name == OF_EXPORT:
        return None
    return MULLIGAN if name.startswith(OURS) else SDK if name.startswith(OF_SDK) else None


def feature_of(code: CodeType) -> str | None:
    """The feature in whose folder a function is."""
    return next((name for name, folder in OF_FEATURES if code.co_filename.startswith(folder)), None)


Act = Callable[[WorkflowHandle[Any, Any], int], Awaitable[None]]
"""What people do when a run waits for the n-th time."""


class Meter:
    """Measures runs. The requests of the worker's client are in `metrics`; those of `driver` are not counted."""

    def __init__(self, driver: Client, metrics: MetricBuffer, task_queue: str) -> None:
        self._driver, self._metrics, self._queue = driver, metrics, task_queue

    async def cost(self, run_id: str, run_input: dict[str, Any], act: Act | None = None) -> Cost:
        """The cost of a run. `act` is called each time that it waits for something outside.

        Raises:
            Disturbed: it has cost more, as the machine was busy.
        """
        self._metrics.retrieve_updates()
        calls = Calls()
        with calls.counted(run_id):
            handle = await self._driver.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=self._queue)
            if act is not None:
                await self._act(handle, act)
            result = await handle.result()
        assert result["status"] == "completed", result
        cost, disturbed = Cost(calls=calls.by_part), False
        for update in self._metrics.retrieve_updates():
            if update.metric.name == "temporal_request":
                name = str(update.attributes["operation"])
                if REQUESTS.match(name):
                    cost.requests[name] += int(update.value)
        for (_, code), count in calls.by_code.items():
            if (feature := feature_of(code)) is not None:
                cost.of_features[feature] += count
        async for event in handle.fetch_history_events():
            disturbed |= event.event_type in DISTURBING
            cost.events += 1
            cost.bytes += normalized_size(event)
            cost.payloads += len(_payloads(event))
        if disturbed:
            raise Disturbed
        self.calls = calls
        return cost

    async def start(self, run_id: str, run_input: dict[str, Any]) -> WorkflowHandle[Any, Any]:
        """Start a run whose cost does not count."""
        return await self._driver.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=self._queue)

    async def _act(self, handle: WorkflowHandle[Any, Any], act: Act) -> None:
        """Call `act` whenever nothing of the run is under way."""
        times = itertools.count()
        while (described := await handle.describe()).status == WorkflowExecutionStatus.RUNNING:
            raw = described.raw_description
            if not (raw.pending_activities or raw.pending_children or raw.HasField("pending_workflow_task")):
                await act(handle, next(times))
            await asyncio.sleep(0.01)


DISTURBING = (
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
)


def normalized_size(event: HistoryEvent) -> int:
    """The bytes of an event, but for those that differ from run to run: times, identities, numbers of seconds in JSON."""
    normal = HistoryEvent()
    normal.CopyFrom(event)
    _normalize(normal)
    return len(normal.SerializeToString())


def _normalize(message: Message) -> None:
    for descriptor, value in message.ListFields():
        is_sticky = isinstance(value, TaskQueue) and value.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY
        if descriptor.name in CLEARED or isinstance(value, Timestamp) or is_sticky:  # the name has the process's id
            message.ClearField(descriptor.name)
        elif isinstance(value, Payload):
            _normalize_payload(value)
        elif descriptor.message_type is not None:
            for each in _messages(value):
                _normalize_payload(each) if isinstance(each, Payload) else _normalize(each)


def _messages(value: Any) -> list[Message]:
    if isinstance(value, Message):
        return [value]
    items = value.values() if hasattr(value, "values") else value
    return [each for each in items if isinstance(each, Message)]


def _normalize_payload(payload: Payload) -> None:
    if payload.metadata.get("encoding") == b"json/plain":
        payload.data = json.dumps(_without_times(json.loads(payload.data)), ensure_ascii=False).encode()


def _without_times(value: Any) -> Any:
    """Times and durations, whose digits differ, are numbers with a fraction in our JSON; in the SDK's they have `nanos`."""
    match value:
        case float():
            return 0.0
        case {"nanos": _}:
            return {}
        case dict():
            return {name: _without_times(each) for name, each in value.items()}
        case list():
            return [_without_times(each) for each in value]
        case _:
            return value


def _payloads(message: Message) -> list[Payload]:
    if isinstance(message, Payload):
        return [message]
    return [
        payload
        for descriptor, value in message.ListFields()
        if descriptor.message_type is not None
        for each in _messages(value)
        for payload in _payloads(each)
    ]


def counting_runtime() -> tuple[Runtime, MetricBuffer]:
    """A runtime of the SDK whose requests are counted."""
    metrics = MetricBuffer(100_000)
    return Runtime(telemetry=TelemetryConfig(logging=None, metrics=metrics)), metrics
