"""`MemoryLab`: runs the scripted conversations of a `Lab` without a server, for what is decided: durability needs a real one."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from mulligan import error_of
from mulligan.client.callback_tokens import CallbackTokens
from mulligan.client.converter import data_converter
from mulligan.observe.telemetry import Telemetry
from mulligan.testing._activities import PAYLOADS
from mulligan.testing._ordered_run import OrderedRun
from mulligan.worker.loading import LoadedModules
from mulligan.worker.sdk_workarounds.activation_messages import DoUpdate, WorkflowActivationJob
from mulligan.worker.wiring import AgentActivities, LoadedFeatures
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.support.lab import Ran
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_records import Span, spans_of
from tests.support.zoo.member import Member


class OpenRun(OrderedRun):
    """A run that waits for updates. `passes_time`: whether its timers fire when nothing else can happen."""

    def __init__(
        self, activities: Sequence[Callable[..., Any]], key: str, features: tuple[type, ...], *, passes_time: bool
    ) -> None:
        super().__init__(AgentWorkflow, activities, key, features=features)
        self.key, self.passes_time = key, passes_time
        self.is_open, self._changed = asyncio.Event(), asyncio.Event()
        self._sent: list[WorkflowActivationJob] = []
        self._answers: dict[str, asyncio.Future[Any]] = {}

    async def next(self) -> None:
        """Deliver the next update, or let the next event happen; wait for an update if nothing can."""
        self.is_open.set()
        self._changed.clear()
        if self._sent:
            await self.deliver(self.key, self._sent.pop(0))
        elif self._is_idle():
            await self._changed.wait()
        else:
            await super().next()
        for each in self.engine.update_answers:
            number, answer = each[1].protocol_instance_id, each[1]
            if number in self._answers and not answer.HasField("accepted") and not self._answers[number].done():
                self._answers[number].set_result(answer)

    def _is_idle(self) -> bool:
        open_runs = [key for key, run in self.engine.runs.items() if not run.status]
        kinds = {kind for key in open_runs for kind, _ in self.engine.possible(key)}
        return not self._tasks and not kinds - ({"activity"} if self.passes_time else {"activity", "timer"})

    async def update(self, name: str, argument: Any) -> Any:
        """Send an update; its result, or its refusal as a client of a server gets it."""
        number = str(len(self._answers))
        self._answers[number] = asyncio.get_running_loop().create_future()
        payloads = PAYLOADS.to_payloads([argument])
        update = DoUpdate(id=number, protocol_instance_id=number, name=name, input=payloads, run_validator=True)
        self._sent.append(WorkflowActivationJob(do_update=update))
        self._changed.set()
        answer = await self._answers[number]
        if answer.HasField("rejected"):
            raise WorkflowUpdateFailedError(data_converter.failure_converter.from_failure(answer.rejected, PAYLOADS))
        return PAYLOADS.from_payload(answer.completed)

    def cancel(self) -> None:
        """Ask for a cancellation."""
        self.engine.runs[self.key].is_cancel_requested = True
        self._changed.set()


@dataclass
class MemoryHandle:
    """The part of a `WorkflowHandle` that tests of a lab use."""

    id: str
    run: OpenRun
    ending: asyncio.Task[Any]

    async def query(self, name: str, argument: Any = None, *, args: Sequence[Any] = (), **_: Any) -> Any:
        """The result of a query."""
        await self.run.is_open.wait()
        return await self.run.query(name, *(args if argument is None else (argument,)))

    async def execute_update(self, name: str, argument: Any) -> Any:
        """Send an update."""
        return await self.run.update(name, argument)

    async def cancel(self) -> None:
        """Ask for a cancellation."""
        self.run.cancel()

    async def result(self) -> Any:
        """The run's result."""
        return await self.ending


@dataclass
class MemoryLab:
    """The real workflow, activities and providers in this process, and the model server that a lab has."""

    model: OpenAIServer
    loaded: LoadedModules
    _activities: Sequence[Callable[..., Any]]
    _exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    member: Member | None = None
    """The server of the zoo that answers the next runs, in place of OpenAI's."""

    async def start(self, turns: Any, *, agent: str = "shop", api: str = "openai-chat", **run_input: Any) -> Any:
        """Start a run whose model answers by the script; return its handle. No time passes in it: it waits for people."""
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.model.script(run_id, turns)
        given = {"agent": agent, "prompt": "Go.", "model": f"{api}:{run_id}", **run_input}
        return self._begin(given, run_id, passes_time=False)

    async def run(self, turns: Any, *, agent: str = "shop", api: str = "openai-chat", **run_input: Any) -> Ran:
        """Run to the end, failed or not, and collect everything. Timers fire when nothing else can happen."""
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.model.script(run_id, turns)
        given = {"agent": agent, "prompt": "Go.", "model": f"{api}:{run_id}", **run_input}
        return await self.run_input(given, run_id)

    async def run_input(self, given: Any, run_id: str = "") -> Ran:
        """The same with any input."""
        return await self.look(self._begin(given, run_id or f"run-{uuid.uuid4().hex[:8]}", passes_time=True))

    def _begin(self, given: Any, run_id: str, *, passes_time: bool) -> MemoryHandle:
        if self.member is not None:
            self.model.members[run_id] = self.member
        features = LoadedFeatures(self.loaded).classes
        run = OpenRun(self._activities, run_id, features, passes_time=passes_time)
        task = asyncio.create_task(run.run(given))
        # A test may look at a failed run by its queries alone: asyncio would report an error that nobody read.
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return MemoryHandle(run_id, run, task)

    async def look(self, handle: Any) -> Ran:
        """Wait for a run's end, and collect everything. Asserts that the provider refused no request."""
        result: dict[str, Any] = {}
        error = None
        try:
            result = await handle.result()
        except WorkflowFailureError as failure:
            error = error_of(failure)
            if error is None:
                raise
        steps = (await handle.query("steps", args=[0, 1000]))["steps"]
        messages = (await handle.query("messages", args=[0, 1000]))["messages"]
        said = next((n for n, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        rejected = [message["text"] for message in messages[said:] if message["role"] == "user"]
        requests = self.model.requests_of(handle.id)
        is_learned = handle.id in self.model.members
        assert is_learned or [request.refusal for request in requests if request.refusal] == []
        return Ran(handle.id, handle, result, error, steps, requests, self._spans_of(handle.id, result), rejected)

    def _spans_of(self, run_id: str, result: dict[str, Any]) -> list[Span]:
        finished = self._exporter.get_finished_spans()
        roots = (each for each in finished if (each.attributes or {}).get("temporal.workflow_id") == run_id)
        trace_id = result["trace_id"] if result else next((_trace_of(each) for each in roots), "")
        encoded = encode_spans([each for each in finished if _trace_of(each) == trace_id])
        found = spans_of(ExportTraceServiceRequest(resource_spans=encoded.resource_spans))
        return sorted(found, key=lambda each: each.start_ns)


def _trace_of(span: ReadableSpan) -> str:
    return format(span.context.trace_id, "032x") if span.context else ""


@asynccontextmanager
async def memory_lab(model: OpenAIServer, loaded: LoadedModules) -> AsyncIterator[MemoryLab]:
    """The lab of these agents, with their activities open."""
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(SimpleSpanProcessor(exporter), exports=False)
    created = AgentActivities(loaded, telemetry, tokens=CallbackTokens(_random_key))
    async with created.opened() as activities:
        yield MemoryLab(model, loaded, activities, exporter)


async def _random_key() -> list[bytes]:
    return [secrets.token_bytes(32)]
