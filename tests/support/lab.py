"""`Lab`: runs scripted conversations on a real server, worker and OTLP receiver. Its fixtures: lab_fixtures.py."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from mulligan import MulliganError, connect, error_of
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.group import WorkerGroup
from tests.support.openai_server import OpenAIServer, Recorded
from tests.support.openai_turn import Turn
from tests.support.otlp_receiver import OtlpReceiver, Span


@dataclass
class Ran:
    """A run that has ended: its result or error, its steps, its model requests and its spans."""

    id: str
    handle: WorkflowHandle[Any, Any]
    result: dict[str, Any]
    error: MulliganError | None
    steps: list[dict[str, Any]]
    requests: list[Recorded] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    """The feedback that the model got as user messages, about rejected answers that contain no call."""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All tool calls, over all steps."""
        return [call for step in self.steps for call in step["tool_calls"]]

    def spans_of(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@dataclass
class Lab:
    """Runs scripted conversations on a real server, worker and OTLP receiver."""

    client: Client
    model: OpenAIServer
    otlp: OtlpReceiver
    telemetry: Telemetry
    task_queue: str = "agents"
    workers: WorkerGroup | None = None
    """The workers of the session. Their fixture cannot be cancelled, so tests check them instead of waiting for ever."""

    async def another_client(self) -> Client:
        """A new connection to the same namespace, with the current settings."""
        return await connect(self.client.service_client.config.target_host, namespace=self.client.namespace)

    async def start(self, turns: Any, *, agent: str = "shop", api: str = "openai-chat", **run_input: Any) -> Any:
        """Start a run whose model answers by the script; return its handle."""
        run_id, given = self._given(turns, agent, api, run_input)
        if self.workers and self.workers.failure:
            raise self.workers.failure
        return await self.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=self.task_queue)

    def starting(
        self, turns: Any, *, agent: str = "shop", api: str = "openai-chat", **run_input: Any
    ) -> WithStartWorkflowOperation[Any, Any]:
        """The operation that starts such a run together with an update."""
        run_id, given = self._given(turns, agent, api, run_input)
        return WithStartWorkflowOperation(
            "AgentWorkflow", given, id=run_id, task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )  # fmt: skip

    def _given(self, turns: Any, agent: str, api: str, run_input: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.model.script(run_id, turns)
        return run_id, {"agent": agent, "prompt": "Go.", "model": f"{api}:{run_id}", **run_input}

    async def run(self, turns: Any, **run_input: Any) -> Ran:
        """Run to the end, failed or not, and collect everything. Asserts that the provider refused no request."""
        return await self.look(await self.start(turns, **run_input))

    async def look(self, handle: Any) -> Ran:
        result: dict[str, Any] = {}
        error = None
        try:
            result = await self._while_served(handle.result())
        except WorkflowFailureError as failure:
            error = error_of(failure)
            if error is None:
                raise
        steps = (await handle.query("steps", args=[0, 1000]))["steps"]
        messages = (await handle.query("messages", args=[0, 1000]))["messages"]
        said = next((n for n, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        rejected = [message["text"] for message in messages[said:] if message["role"] == "user"]
        requests = self.model.requests_of(handle.id)
        assert [request.refusal for request in requests if request.refusal] == []
        self.telemetry.flush()
        spans = self.otlp.spans(trace_id=result["trace_id"] if result else self._trace_of(handle.id))
        return Ran(handle.id, handle, result, error, steps, requests, spans, rejected)

    async def _while_served(self, result: Coroutine[Any, Any, Any]) -> Any:
        """The result of a run, or the error of the worker if that stops meanwhile."""
        if self.workers is None:
            return await result
        run, failed = asyncio.create_task(result), asyncio.create_task(self.workers.until_failed())
        try:
            await asyncio.wait((run, failed), return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                raise failed.result()
            return await run
        finally:
            run.cancel()
            failed.cancel()

    def _trace_of(self, workflow_id: str) -> str:
        # A failed run has no result with a trace id: the trace is found by its root span.
        roots = [s for s in self.otlp.spans() if s.attributes.get("temporal.workflow_id") == workflow_id]
        return roots[0].trace_id if roots else ""


def call(name: str, arguments: str = "{}", id: str | None = None) -> Turn:  # noqa: A002 - OpenAI's name
    """A turn in which the model makes one call."""
    return Turn(calls=[(name, arguments, id)])


DONE = Turn(text="done")
