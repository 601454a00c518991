"""Run an agent, or your own workflow, without a server: the real workflow and the real activities, in this process."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic

from mulligan.agent import Agent
from mulligan.errors import DeclarationError, MulliganError, error_of
from mulligan.output import with_typed_output
from mulligan.run_input import RunInput
from mulligan.script import Script
from mulligan.testing.model import ScriptedModel
from mulligan.values import Message, OutputT, RunResult, Step, StepCall
from mulligan.wire.agent_facts import DEFINITION_QUERY, Definition, ToolDefinition
from mulligan.wire.event_types import EVENT, Event
from mulligan.worker.agent_folder import agent_folder, names_in_folder
from mulligan.worker.loading import LoadedModules, load_agents
from mulligan.worker.read_agent_folder import SUFFIX

if TYPE_CHECKING:  # imported when a run begins: pytest imports test modules also when none of their tests is selected
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mulligan.activities.models.available_providers import AvailableProviders
    from mulligan.testing._ordered_run import OrderedRun
    from mulligan.testing.person import Person

_CONVERSATION = "0"
"""The key of the only conversation of an AgentWorkflow."""
_GIVEN = "resources="
"""In place of the name of a module, for the resources that a test gives."""


@dataclass(frozen=True)
class SpanSeen:
    """A span of the run. Its `status` is `UNSET` or `ERROR`."""

    name: str
    """As in docs/traces.md."""
    status: str
    attributes: dict[str, Any]
    """Its attributes by their names."""


@dataclass(frozen=True)
class AgentRun(Generic[OutputT]):
    """A run that has ended, with a result or with one of Mulligan's errors."""

    result: RunResult[OutputT] | None
    """None if the run failed."""
    error: MulliganError | None
    """Why it failed; None if it did not."""
    steps: list[Step]
    """All steps, in their order."""
    messages: list[Message]
    """The whole conversation."""
    spans: list[SpanSeen] = field(default_factory=list)
    """All spans of its trace, in the order of their ends."""
    instructions: str = ""
    """The instructions that the model got with each call, beside the messages."""
    tools: list[ToolDefinition] = field(default_factory=list)
    """The tools that the model got, including those for structured output."""
    events: list[Event] = field(default_factory=list)
    """The events of the run that its workflow stores (docs/events.md)."""

    @property
    def calls(self) -> list[StepCall]:
        """All tool calls, over all steps."""
        return [call for step in self.steps for call in step.tool_calls]

    @property
    def output(self) -> OutputT:
        """The output of the run: a text, or an object of the agent's output type.

        None, whatever its type says, if the run failed or did not complete: an assertion on it then fails.
        """
        return self.result.output if self.result else None  # type: ignore[return-value]


async def run_agent(  # noqa: PLR0913 - all but two are options, given by name
    agent: Agent[OutputT] | str | PathLike[str],
    prompt: str | RunInput,
    *,
    model: ScriptedModel,
    others: Sequence[Agent] = (),
    load: Sequence[str] = (),
    scripts: Sequence[Script] = (),
    sub_agents: Mapping[str, Script] | None = None,
    person: Person | None = None,
    resources: object = None,
    **run_input: Any,
) -> AgentRun[OutputT]:
    """Run an agent in milliseconds: without server, network and API key. Timers and retries do not wait.

    Args:
        agent: The agent under test, or the path of its file, whose folder is served with its labels. Its tools run; its
            model is replaced by `model`.
        prompt: The prompt, or a whole RunInput (its `agent` and `model` are overwritten).
        model: The scripted model: what it answers, and what it expects as input.
        others: More agents that the worker has.
        load: The modules that a worker loads: an agent that is a file names what they declare.
        scripts: More scripted models, for example for `ask_model("scripted:NAME")`.
        sub_agents: The scripted models of sub-agents, by the agent's name. Other sub-agents use the model that they declare.
            If a sub-agent is called several times at once, a `Script` answers each run the same.
        person: Called for each call that waits for approval or an answer, also of a sub-agent, when nothing else can run. It
            returns a `Decide`, an `Answer`, or None for no reply, so that its time passes.
        resources: A fake that all tools get as `ctx.resources`, in place of what the `resources()` of the agents' modules
            yield; those are not opened then. None: they are opened as a worker does it.
        **run_input: Fields of the RunInput: `max_steps`, `metadata`, `on_invalid_tool_input` …

    Raises:
        AssertionError: an assertion in a turn failed, or the model was called more or less often than it has turns.
        DeclarationError: the agents cannot be served together, the agent's file is wrong, or `model` is the name of a real
            model.
        ValidationError: a field that RunInput does not have, or an invalid value.
    """
    check_is_scripted(model)
    models = [model, *scripts, *(sub_agents or {}).values()]
    scripted = [model, *scripts]
    under_test, loaded = await load_under_test(agent, others, scripted, sub_agents, resources, load)
    given = make_run_input(under_test, prompt, model, run_input)
    run = await run_loaded(under_test, given, loaded, models, person=person)
    check_models(models, run)
    return run


async def run_loaded(
    agent: Agent[OutputT],
    given: RunInput,
    loaded: LoadedModules,
    models: Sequence[Script] = (),
    *,
    person: Person | None = None,
    providers: AvailableProviders | None = None,
) -> AgentRun[OutputT]:
    """Run an agent that is loaded. `providers`: answer in place of those of its models.

    Raises:
        BaseException: an assertion in a turn of `models` failed.
    """
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mulligan.workflows.agent_workflow import AgentWorkflow

    spans = InMemorySpanExporter()
    async with _ordered_run(AgentWorkflow, loaded, models, spans, person, providers) as ordered:

        async def query(_: str | None, name: str, *arguments: Any) -> Any:
            return await ordered.query(name, *arguments)

        return await read_agent_run(agent, ordered.run(given), query, spans)


async def run_workflow(
    workflow: type,
    *arguments: Any,
    agents: Sequence[Agent],
    models: Sequence[Script],
    person: Person | None = None,
    resources: object = None,
) -> Any:
    """Run your own workflow with `DurableAgent`s, and return its result as JSON values.

    Args:
        workflow: The workflow's class.
        *arguments: The arguments of its `run`.
        agents: The agents that it uses, with the models that they declare: the `scripted:NAME` of one of `models`, unless
            the workflow passes `model=`.
        models: The scripted models.
        person: As for `run_agent`.
        resources: As for `run_agent`.

    Raises:
        WorkflowFailureError: the workflow failed.
        RuntimeError: its code raised an error that fails a workflow task, or needs a feature of the server.
        AssertionError: as for `run_agent`.
    """
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    loaded = load_for_test(agents, models, resources=resources)
    async with _ordered_run(workflow, loaded, models, InMemorySpanExporter(), person) as ordered:
        result = await ordered.run(*arguments)
    check_models(models)
    return result


def check_is_scripted(model: object) -> None:
    """Check that a model is a scripted one.

    Raises:
        DeclarationError: it is not.
    """
    if not isinstance(model, Script):
        raise DeclarationError(
            f"model={model!r} is no scripted model, but a test without a server calls no real one; give the answers: "
            'model=ScriptedModel("It is on its way."). A real model is for `mulligan start … --model`.'
        )


def make_run_input(agent: Agent, prompt: str | RunInput, model: ScriptedModel, fields: dict[str, Any]) -> RunInput:
    """The RunInput of a run of this agent with that model."""
    base = prompt.model_dump(exclude_unset=True) if isinstance(prompt, RunInput) else {"prompt": prompt}
    kind = type(prompt) if isinstance(prompt, RunInput) else RunInput
    return kind.model_validate({**base, **fields, "agent": agent.name, "model": f"scripted:{model.name}"})


def load_for_test(
    agents: Sequence[Agent],
    scripts: Sequence[Script],
    sub_agents: Mapping[str, Script] | None = None,
    resources: object = None,
    modules: Sequence[str] = (),
    file_names: Sequence[str] = (),
) -> LoadedModules:
    """The agents and scripts as a worker loads them, with scripted models for some sub-agents, and `resources` for all.

    `modules`: what else is loaded. `file_names`: of agents that are files, which are served later.

    Raises:
        DeclarationError: the agents cannot be served together, or `sub_agents` names an agent that is missing.
    """
    loaded = load_agents(agents, scripts, modules, file_names)
    known = loaded.registry.agents
    for name, script in (sub_agents or {}).items():
        if name not in known:
            names = ", ".join(sorted(known))
            raise DeclarationError(f"sub_agents names {name!r}, but the agents of this test are: {names}.")
        key = f"sub_agents[{name!r}]"
        loaded.registry.scripts[key] = script
        known[name] = replace(known[name], model=f"scripted:{key}")
    return loaded if resources is None else _with_resources(loaded, resources, file_names)


async def load_under_test(
    agent: Agent[OutputT] | str | PathLike[str],
    others: Sequence[Agent],
    scripts: Sequence[Script],
    sub_agents: Mapping[str, Script] | None,
    resources: object,
    modules: Sequence[str],
) -> tuple[Agent[OutputT], LoadedModules]:
    """The agent, and what a worker loads for it. Of an agent that is a file, the folder is served.

    Raises:
        DeclarationError: the agents cannot be served together; the file is wrong, or is not there.
    """
    if isinstance(agent, Agent):
        return agent, load_for_test([agent, *others], scripts, sub_agents, resources, modules)
    parent, name = os.path.split(os.path.abspath(agent))  # noqa: ASYNC240 - a path, and no file
    loaded = load_for_test(others, scripts, sub_agents, resources, modules, names_in_folder(parent))
    folder = agent_folder(parent, loaded.registry)
    assert folder is not None
    await folder.load()
    if wrong := [each for each in folder.problems if each.startswith((f"{os.path.join(parent, name)},", f"{parent}:"))]:
        raise DeclarationError(wrong[0])
    if name.removesuffix(SUFFIX) not in folder.served:
        raise DeclarationError(
            f"{agent}: there is no such agent in the folder; it has: {', '.join(folder.served) or 'none'}."
        )
    return loaded.registry.agents[name.removesuffix(SUFFIX)], loaded


def _with_resources(loaded: LoadedModules, resources: object, file_names: Sequence[str]) -> LoadedModules:
    """What is loaded, with one value as the resources of every agent and tool."""

    @asynccontextmanager
    async def given() -> AsyncIterator[object]:
        yield resources

    registry = loaded.registry
    tools = {*registry.tools, *(tool.name for agent in registry.agents.values() for tool in agent.listed_tools)}
    return replace(
        loaded,
        resources={_GIVEN: given},
        modules_of_agents=dict.fromkeys([*registry.agents, *file_names], _GIVEN),
        modules_of_tools=dict.fromkeys(tools, _GIVEN),
    )


def reset_models(models: Sequence[Script]) -> None:
    """Prepare models for a new run: they forget the messages of the run before."""
    for model in models:
        if isinstance(model, ScriptedModel):
            model.begin()


def check_turns(models: Sequence[Script]) -> None:
    """Raise the error of a turn first: other errors may be caused by it."""
    for model in models:
        if isinstance(model, ScriptedModel):
            model.check_turns()


def check_models(models: Sequence[Script], run: AgentRun | None = None) -> None:
    """After a run: fail the test if a turn failed or was not used."""
    check_turns(models)
    error = run.error if run else None
    ended = f"the run ended as {run.result.status!r}" if run and run.result else ""
    if error is not None:
        ended = f"the run failed with {error}"
    for model in models:
        if isinstance(model, ScriptedModel):
            model.check(ended.rstrip("."), error)


@asynccontextmanager
async def _ordered_run(
    workflow: type,
    loaded: LoadedModules,
    models: Sequence[Script],
    spans: InMemorySpanExporter,
    person: Person | None,
    providers: AvailableProviders | None = None,
) -> AsyncIterator[OrderedRun]:
    """A run of a workflow, with its activities open."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from mulligan.client.callback_tokens import CallbackTokens
    from mulligan.observe.telemetry import Telemetry
    from mulligan.testing._ordered_run import OrderedRun
    from mulligan.testing.person import PersonDriver
    from mulligan.worker.wiring import AgentActivities, LoadedFeatures

    reset_models(models)
    telemetry = Telemetry(SimpleSpanProcessor(spans), content=True, exports=False)
    created = AgentActivities(loaded, telemetry, tokens=CallbackTokens(_random_key), providers=providers)
    async with created.opened() as activities:
        driver = PersonDriver(person) if person is not None else None
        features = LoadedFeatures(loaded).classes
        run = OrderedRun(workflow, activities, f"test-{uuid.uuid4().hex[:8]}", person=driver, features=features)
        try:
            yield run
        except Exception:
            check_turns(models)
            raise
        finally:
            run.close()


async def _random_key() -> list[bytes]:
    """A key for the callback tokens of a run without a server, which nobody reads."""
    return [secrets.token_bytes(32)]


async def read_agent_run(
    agent: Agent[OutputT], result: Awaitable[Any], query: Callable[..., Awaitable[Any]], spans: InMemorySpanExporter
) -> AgentRun[OutputT]:
    """Wait for a run's end, and read its steps, messages and spans. `query`: as in `mulligan.client.read_run.read_pages`."""
    from pydantic import TypeAdapter
    from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError

    from mulligan.client.read_run import read_pages

    run_result, error, definition = None, None, Definition(instructions="", tools=[])
    try:
        run_result = with_typed_output(RunResult.model_validate(await result), agent.declared_output)
    except WorkflowFailureError as failure:
        error = error_of(failure)
        if error is None:
            raise
    run_spans = [
        SpanSeen(span.name, span.status.status_code.name, dict(span.attributes or {}))
        for span in spans.get_finished_spans()
    ]
    with suppress(WorkflowQueryFailedError):  # a run that failed before its agent was looked up
        definition = Definition.model_validate(await query(None, DEFINITION_QUERY, _CONVERSATION))
    steps = [Step.model_validate(step) for step in await read_pages(query, "steps")]
    messages = TypeAdapter(list[Message]).validate_python(await read_pages(query, "messages"))
    events = [EVENT.validate_python(event) for event in await read_pages(query, "events")]
    return AgentRun(
        result=run_result,
        error=error,
        steps=steps,
        messages=messages,
        events=events,
        spans=run_spans,
        instructions=definition.instructions,
        tools=definition.tools,
    )
