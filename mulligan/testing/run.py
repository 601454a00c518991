"""Run an agent, or a workflow of one's own, without a server: the real workflow and the real activities, in this process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mulligan.agent import Agent
from mulligan.errors import DeclarationError, MulliganError, error_of
from mulligan.run_input import RunInput
from mulligan.script import Script
from mulligan.testing.model import Model
from mulligan.values import Message, RunResult, Step, StepCall
from mulligan.wire.agent_facts import DEFINITION_QUERY, Definition, ToolDefinition
from mulligan.worker.loading import LoadedModules, load_agents

if TYPE_CHECKING:  # else loaded as a run begins: a test module is imported for each test that is selected, or not
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mulligan.testing._engine import Engine
    from mulligan.testing.person import Person

__all__ = ["AgentRun", "SpanSeen", "run_agent", "run_workflow"]

_ITS_ONE_AGENT = "0"
"""The key of an AgentWorkflow's conversation."""


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
    instructions: str = ""
    """What the model was told at each of its turns, beside the messages."""
    tools: list[ToolDefinition] = field(default_factory=list)
    """The tools that it was offered, with those for structured output."""

    @property
    def calls(self) -> list[StepCall]:
        """All tool calls, over all steps."""
        return [call for step in self.steps for call in step.tool_calls]

    @property
    def output(self) -> Any:
        """What the run came to; None where it failed."""
        return self.result.output if self.result else None


async def run_agent(
    agent: Agent,
    prompt: str | RunInput,
    *,
    model: Model,
    others: Sequence[Agent] = (),
    scripts: Sequence[Script] = (),
    sub_agents: Mapping[str, Script] | None = None,
    person: Person | None = None,
    **run_input: Any,
) -> AgentRun:
    """Run an agent, in milliseconds: no server, no network, no key. Timers and retries do not wait.

    Args:
        agent: The agent under test, with its own tools: they run. Its model is not asked.
        prompt: What it is asked, or a whole RunInput (its `agent` and `model` are set).
        model: What the model says, and what it expects to be told.
        others: More agents that the worker would have.
        scripts: More models: what `ask_model("scripted:NAME")` asks.
        sub_agents: What the models of sub-agents say, by the agent's name; others are asked as they are declared. Where one
            is called several times at once, a `Script` says the same to each.
        person: Asked about each call that waits for approval or an answer, once nothing else goes on; a sub-agent's too. It
            returns a `Decide`, an `Answer`, or None: nobody says anything, and `approval_timeout` goes by.
        run_input: Fields of the RunInput: `max_steps`, `metadata`, `on_invalid_tool_input` …

    Raises:
        AssertionError: of the model's turns; or it was asked more or less often than it has turns.
        DeclarationError: the agents cannot be served together.
        ValidationError: a field that RunInput does not take.
    """
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mulligan.workflows.agent_workflow import AgentWorkflow

    spans, models = InMemorySpanExporter(), [model, *scripts, *(sub_agents or {}).values()]
    loaded = load_for_test([agent, *others], [model, *scripts], sub_agents)
    async with _engine(AgentWorkflow, loaded, models, spans, person) as engine:

        async def ask(_: str | None, name: str, *arguments: Any) -> Any:
            return await engine.query(name, *arguments)

        run = await read_agent_run(engine.run(make_run_input(agent, prompt, model, run_input)), ask, spans)
    check_models(models, run)
    return run


async def run_workflow(
    workflow: type,
    *arguments: Any,
    agents: Sequence[Agent],
    models: Sequence[Script],
    person: Person | None = None,
) -> Any:
    """Run a workflow of one's own that holds `DurableAgent`s; returns its result as JSON values.

    Agents ask the models that they are declared with, so `agents` are declared with `scripted:NAME` of one of `models`, or
    the workflow passes `model=`.

    Raises:
        WorkflowFailureError: it failed.
        RuntimeError: its code raised what fails a workflow task, or it does what only a server can.
        AssertionError: of the models' turns.
    """
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    async with _engine(workflow, load_for_test(agents, models), models, InMemorySpanExporter(), person) as engine:
        result = await engine.run(*arguments)
    check_models(models)
    return result


def make_run_input(agent: Agent, prompt: str | RunInput, model: Model, fields: dict[str, Any]) -> RunInput:
    """The input of a run of this agent by that model."""
    given = prompt.model_dump(exclude_unset=True) if isinstance(prompt, RunInput) else {"prompt": prompt}
    return RunInput.model_validate({**given, **fields, "agent": agent.name, "model": f"scripted:{model.name}"})


def load_for_test(
    agents: Sequence[Agent], scripts: Sequence[Script], sub_agents: Mapping[str, Script] | None = None
) -> LoadedModules:
    """What a worker would have loaded, with models of their own for some of the sub-agents.

    Raises:
        DeclarationError: the agents cannot be served together, or there is none of a name.
    """
    loaded = load_agents(agents, scripts)
    known = loaded.registry.agents
    for name, script in (sub_agents or {}).items():
        if name not in known:
            there = ", ".join(sorted(known))
            raise DeclarationError(f"sub_agents names {name!r}, but the agents of this test are: {there}.")
        key = f"sub_agents[{name!r}]"
        loaded.registry.scripts[key] = script
        known[name] = replace(known[name], model=f"scripted:{key}")
    return loaded


def reset_models(models: Sequence[Script]) -> None:
    """A run begins: models forget what the one before told them."""
    for model in models:
        if isinstance(model, Model):
            model.begin()


def check_turns(models: Sequence[Script]) -> None:
    """What a turn raised comes first: all else that went wrong may come of it."""
    for model in models:
        if isinstance(model, Model):
            model.check_turns()


def check_models(models: Sequence[Script], run: AgentRun | None = None) -> None:
    """At a run's end the models say whether the test holds."""
    check_turns(models)
    error = run.error if run else None
    ended = f"the run ended as {run.result.status!r}" if run and run.result else ""
    if error is not None:
        ended = f"the run failed with {error}"
    for model in models:
        if isinstance(model, Model):
            model.check(ended.rstrip("."), error)


@asynccontextmanager
async def _engine(
    workflow: type, loaded: LoadedModules, models: Sequence[Script], spans: InMemorySpanExporter, person: Person | None
) -> AsyncIterator[Engine]:
    """An engine for a workflow."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from mulligan.observe.telemetry import Telemetry
    from mulligan.testing._engine import Engine
    from mulligan.testing.person import PersonDriver
    from mulligan.worker.wiring import AgentActivities

    reset_models(models)
    telemetry = Telemetry(SimpleSpanProcessor(spans), content=True, exports=False)
    async with AgentActivities(loaded, telemetry).opened() as activities:
        asking = PersonDriver(person) if person is not None else None
        engine = Engine(workflow, activities, f"test-{uuid.uuid4().hex[:8]}", asking=asking)
        try:
            yield engine
        except Exception:
            check_turns(models)
            raise
        finally:
            engine.close()


async def read_agent_run(
    result: Awaitable[Any], ask: Callable[..., Awaitable[Any]], spans: InMemorySpanExporter
) -> AgentRun:
    """Wait for a run's end, and look at all that there is to see of it. `ask`: as `mulligan.follow` asks queries."""
    from pydantic import TypeAdapter
    from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError

    from mulligan.client.read_run import read_pages

    ended, error, told = None, None, Definition(instructions="", tools=[])
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
    with suppress(WorkflowQueryFailedError):  # a run that failed before its agent was found
        told = Definition.model_validate(await ask(None, DEFINITION_QUERY, _ITS_ONE_AGENT))
    steps = [Step.model_validate(step) for step in await read_pages(ask, "steps")]
    messages = TypeAdapter(list[Message]).validate_python(await read_pages(ask, "messages"))
    return AgentRun(ended, error, steps, messages, seen, told.instructions, told.tools)
