"""Run an agent, or a workflow of one's own, without a server: the real workflow and the real activities, in this process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import TypeAdapter
from temporalio.client import WorkflowFailureError

from mulligan.agent import Agent
from mulligan.errors import MulliganError, error_of
from mulligan.loading import served
from mulligan.telemetry import Telemetry
from mulligan.testing._engine import Engine
from mulligan.testing.model import Model
from mulligan.values import Message, RunInput, RunResult, Step, StepCall

__all__ = ["AgentRun", "SpanSeen", "run_agent", "run_workflow"]

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


@dataclass(frozen=True)
class SpanSeen:
    """A span that the run made: its status is `UNSET` or `ERROR`."""

    name: str
    status: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class AgentRun:
    """A run that has ended: with a result, or with one of Mulligan's errors."""

    result: RunResult | None
    error: MulliganError | None
    steps: list[Step]
    messages: list[Message]
    spans: list[SpanSeen] = field(default_factory=list)

    @property
    def calls(self) -> list[StepCall]:
        """All tool calls, over all steps."""
        return [call for step in self.steps for call in step.tool_calls]

    @property
    def output(self) -> Any:
        """What the run came to; None where it failed."""
        return self.result.output if self.result else None


async def run_agent(
    agent: Agent, prompt: str | RunInput, *, model: Model, others: Sequence[Agent] = (), **run_input: Any
) -> AgentRun:
    """Run an agent, in milliseconds: no server, no network, no key. Timers and retries do not wait.

    Args:
        agent: The agent under test, with its own tools: they run. Its model is not asked.
        prompt: What it is asked, or a whole RunInput (whose `model` is set to `model`).
        model: What the model says, and what it expects to be told.
        others: More agents that the worker would have.
        run_input: Fields of the RunInput: `max_steps`, `metadata`, `on_invalid_tool_input` …

    Raises:
        AssertionError: of the model's turns; or it was asked more or less often than it has turns.
        DeclarationError: the agents cannot be served together.
    """
    from workflows.agent_workflow import AgentWorkflow

    given = prompt if isinstance(prompt, RunInput) else RunInput(agent=agent.name, prompt=prompt, **run_input)
    given = given.model_copy(update={"agent": agent.name, "model": f"scripted:{model.name}"})
    return await _run(AgentWorkflow, [given], [agent, *others], [model])


async def run_workflow(workflow: type, *arguments: Any, agents: Sequence[Agent], models: Sequence[Model]) -> Any:
    """Run a workflow of one's own that holds `DurableAgent`s; returns its result as JSON values.

    Agents ask the models that they are declared with, so `agents` are declared with `scripted:NAME` of one of `models`, or
    the workflow passes `model=`.

    Raises:
        WorkflowFailureError: it failed.
        AssertionError: of the models' turns.
    """
    async with _engine(workflow, agents, models, InMemorySpanExporter()) as engine:
        return await engine.run(*arguments)


async def _run(workflow: type, arguments: Sequence[Any], agents: Sequence[Agent], models: Sequence[Model]) -> AgentRun:
    spans = InMemorySpanExporter()
    async with _engine(workflow, agents, models, spans) as engine:
        return await observed(engine.run(*arguments), engine.query, spans)


@asynccontextmanager
async def _engine(
    workflow: type, agents: Sequence[Agent], models: Sequence[Model], spans: InMemorySpanExporter
) -> AsyncIterator[Engine]:
    """An engine for a workflow; at its end the models say whether the test holds."""
    from worker import wired

    telemetry = Telemetry(SimpleSpanProcessor(spans), content=True, exports=False)
    async with wired(served(agents, models), telemetry) as activities:
        engine = Engine(workflow, activities, f"test-{uuid.uuid4().hex[:8]}")
        try:
            yield engine
        finally:
            engine.close()
            for model in models:
                model.check()


async def observed(
    result: Awaitable[Any], query: Callable[..., Awaitable[Any]], spans: InMemorySpanExporter
) -> AgentRun:
    """Wait for a run's end, and look at all that there is to see of it."""
    ended, error = None, None
    try:
        ended = RunResult.model_validate(await result)
    except WorkflowFailureError as failure:
        error = error_of(failure)
        if error is None:
            raise
    seen = [
        SpanSeen(span.name, span.status.status_code.name, dict(span.attributes or {}))
        for span in spans.get_finished_spans()
    ]
    steps = [Step.model_validate(step) for step in await _all_of(query, "steps")]
    return AgentRun(ended, error, steps, _MESSAGES.validate_python(await _all_of(query, "messages")), seen)


async def _all_of(query: Callable[..., Awaitable[Any]], name: str) -> list[Any]:
    found: list[Any] = []
    since: int | None = 0
    while since is not None:
        page = await query(name, since, 1_000)
        found += page[name]
        since = page["next"]
    return found
