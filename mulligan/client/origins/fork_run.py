"""Fork a run: start a new one that begins with the messages before the model call of one of its steps."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan.client.origins.carry_over import carry_over, check_origin
from mulligan.client.origins.chained_run import begin_from, request_digest
from mulligan.client.origins.run_state import ResumeError, describe_existing, first_run_id, read_run_state
from mulligan.client.read_agents import AgentReader
from mulligan.client.read_run import read_steps
from mulligan.client.start_run import BegunRun, Handle
from mulligan.client.store_content import store_content
from mulligan.errors import DeclarationError, InvalidRunInputError
from mulligan.model_name import check_model
from mulligan.run_input import INSTRUCTIONS_CHARS, Prompt, RunInput, parse_prompt
from mulligan.schema.json_schema import schema_faults, schema_validator
from mulligan.schema.optional_field import optional_field
from mulligan.values import Message, ToolMessage, UserMessage
from mulligan.wire.request_labels import labels_for
from mulligan.wire.resume_page import ForkState, ResumeState
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.start_input import Origin, StartInput

MOST_RESULTS = 1_000
_ID_CHARS = 900


class ForkError(ResumeError):
    """A run cannot be forked so. The message says why, and what to do."""

    verb = "forked"


class Edits(BaseModel):
    """What is changed in a fork. A field that is left out changes nothing."""

    model_config = ConfigDict(extra="forbid")

    prompt: Prompt | None = optional_field()
    """Takes the place of the run's first prompt: a text, or parts."""
    message: Prompt | None = optional_field()
    """A message of the user that is added before the step."""
    instructions: Annotated[str, Field(min_length=1, max_length=INSTRUCTIONS_CHARS)] | None = optional_field()
    """The agent's instructions."""
    model: Annotated[str, Field(min_length=1, max_length=1_000)] | None = optional_field()
    """The model that is called from the step on, as `provider:NAME`."""
    results: dict[str, JsonValue] = optional_field({}, max_length=MOST_RESULTS)
    """The results of calls before the step, by the calls' ids; each takes the place of an error, too."""


class Fork(BaseModel):
    """How a run is forked. The defaults are those of `mulligan.fork_run`."""

    model_config = ConfigDict(extra="forbid")

    at: Annotated[int, Field(ge=1)] | None = optional_field()
    """The first step that is the fork's own; None: the last step of the run."""
    edits: Edits = Edits()
    """What is changed."""
    tools: Literal["recorded", "live"] = "recorded"
    """`recorded`: calls get the results of the run's equal calls. `live`: tools run."""
    unrecorded: Literal["diverge", "error", "live"] = "diverge"
    """What becomes of a call without a record: the fork ends, the model gets an error, or the tool runs."""
    max_steps: Annotated[int, Field(ge=1)] | None = optional_field()
    """The maximum number of model calls, those before the step included; None: as before."""
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = optional_field()
    """USD after which the fork ends, for what it does itself; None: as before."""
    conversation: Annotated[str, Field(max_length=1_000)] | None = optional_field()
    """The number or the name of the agent, in a workflow with several; None: the first."""
    pinned: bool = True
    """Whether the fork works by the agent as it was when the run opened; else as workers have it today."""
    version: Annotated[str, Field(min_length=1, max_length=64)] | None = optional_field()
    """Another version of the agent: `current`, as workers have it today, or of an agent that is a file a digest or a label.
    None: as `pinned` says."""

    @property
    def keeps_agent(self) -> bool:
        """Whether the fork works by the agent as it was when the run opened."""
        return self.pinned and self.version is None

    @property
    def may_run_tools(self) -> bool:
        """Whether tools run, at least those of calls without a record."""
        return self.tools == "live" or self.unrecorded == "live"

    @property
    def is_for_operators(self) -> bool:
        """Whether it changes the agent or what has happened, or lets tools run."""
        edits = self.edits
        return self.may_run_tools or edits.instructions is not None or edits.model is not None or bool(edits.results)


async def fork_run(  # noqa: PLR0913 - all but the first two are options
    client: Client,
    workflow_id: str,
    *,
    at: int | None = None,
    edits: Mapping[str, Any] | None = None,
    tools: Literal["recorded", "live"] = "recorded",
    unrecorded: Literal["diverge", "error", "live"] = "diverge",
    max_steps: int | None = None,
    conversation: str | None = None,
    pinned: bool = True,
    new_id: str | None = None,
    run_id: str | None = None,
) -> Handle:
    """Start a run that begins with the messages which another run had before the model call of a step.

    The other run may be open or ended, and is not touched. Its calls before the step are not repeated: the fork shares their
    results. Without edits, the model gets, in that step, byte for byte the request that it got before.

    Args:
        client: A client of the server that has the run; `mulligan.connect()` returns one.
        workflow_id: The run; it may be that of a sub-agent, or a workflow with agents.
        at: The first step that is the fork's own, from 1. None: the last step of the run.
        edits: What is changed: `prompt` (in place of the run's first prompt), `message` (added before the step),
            `instructions`, `model`, and `results`: values by the ids of calls before the step.
        tools: `recorded`: a call with the name and arguments of a call of the run gets that call's result, and no tool runs.
            `live`: tools run, so what the run did from the step on happens again.
        unrecorded: With recorded tools, what becomes of a call without a record: `diverge` ends the fork with the status
            `diverged`, with `error` the model gets an error, with `live` the tool runs.
        max_steps: The maximum number of model calls, those before the step included; None: as before.
        conversation: The number or the name of the agent, in a workflow with several. None: the first.
        pinned: Whether the fork works by the agent's definition of the run. False: by the agent as workers have it today.
        new_id: The fork's id; None: an id made from the run's. The same fork again under its id is one run.
        run_id: Temporal's run id, if the run is not the newest one of its workflow id.

    Returns:
        The handle of the fork.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), no worker answers (NoWorkerError), the run is being undone
            (UndoOpenError), or there is no such step, a call of an edit, or a result of its tool's type (ForkError).
        InvalidRunInputError: the fork's input is too large.
        WorkflowAlreadyStartedError: `new_id` is that of another run.
    """
    options = {
        "at": at,
        "edits": dict(edits) if edits else None,
        "tools": tools,
        "unrecorded": unrecorded,
        "max_steps": max_steps,
        "conversation": conversation,
        "pinned": pinned,
    }
    fork = parse_fork({name: value for name, value in options.items() if value is not None})
    return (await start_fork(client, workflow_id, fork, new_id=new_id, run_id=run_id)).handle


def parse_fork(options: Mapping[str, Any]) -> Fork:
    """The options of a fork.

    Raises:
        ForkError: one is unknown, or of another form; a message is empty, or there is no such model.
    """
    try:
        fork = Fork.model_validate(options)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(each) for each in fault["loc"])
        if fault["type"] == "extra_forbidden":
            fields = list((Edits if where.startswith("edits.") else Fork).model_fields)
            raise ForkError(f"{where!r} is not an option of a fork; the options are: {', '.join(fields)}.") from None
        raise ForkError(f"{where!r} cannot be used: {fault['msg']}.") from None
    for name in ("prompt", "message"):
        if getattr(fork.edits, name) == "":
            raise ForkError(f"'edits.{name}' is empty; give a text or parts, or leave it out.")
    if fork.edits.model is not None:
        try:
            check_model(fork.edits.model, "'edits.model' cannot be used")
        except DeclarationError as error:
            raise ForkError(str(error)) from None
    return fork


async def start_fork(
    client: Client,
    workflow_id: str,
    fork: Fork,
    *,
    new_id: str | None = None,
    run_id: str | None = None,
    user: str | None = None,
    memo: Mapping[str, Any] | None = None,
) -> BegunRun:
    """Fork a run as `fork_run` does. The result says whether this request started the fork.

    `user`: for whom the fork works; None: for whom the run did. `memo`: more entries of the fork's memo.

    Raises:
        Exception: as `fork_run`.
    """
    description = await describe_existing(client, workflow_id, run_id)
    request = request_digest({"of": first_run_id(description), **fork.model_dump(mode="json")})
    new_id = new_id or f"{workflow_id[:_ID_CHARS]}-{'fork' if fork.keeps_agent else 'rerun'}-{secrets.token_hex(3)}"

    async def prepare() -> StartInput:
        await check_origin(client, description)
        return await _read_input(client, description, fork, request, user)

    begun = await begin_from(client, new_id, prepare, description.task_queue, memo=memo)
    if isinstance(begun, BegunRun):
        return begun
    if begun.origin is None or begun.origin.kind != "fork" or begun.origin.request != request:
        raise WorkflowAlreadyStartedError(new_id, AGENT_WORKFLOW)
    return begun.begun(client)


async def read_live_calls(client: Client, workflow_id: str, fork: Fork) -> list[dict[str, Any]]:
    """The calls that a run has made from the step of a fork on, whose tools have run: with live tools they may happen again.

    Each is a call of `Step`, with the `step`'s number.

    Raises:
        ResumeError: as `fork_run`.
        RPCError: no worker answers.
    """
    description = await describe_existing(client, workflow_id)
    handle = client.get_workflow_handle(workflow_id, run_id=description.run_id)
    state, _ = await _read_state(client, description, fork)
    assert state.fork is not None
    steps = await read_steps(client, handle, state.fork.step - 1, conversation=state.fork.key)
    return [{"step": step["step"], **call} for step in steps for call in step["tool_calls"] if call["attempts"]]


async def _read_state(client: Client, description: WorkflowExecutionDescription, fork: Fork) -> Any:
    state, messages = await read_run_state(client, description, fork.at or 0, fork.conversation, ForkError)
    if state.fork is None:
        raise ForkError(f"The workflow {description.id!r} ({description.workflow_type}) has no such agent.")
    return state, messages


async def _read_input(
    client: Client, description: WorkflowExecutionDescription, fork: Fork, request: str, user: str | None
) -> StartInput:
    state, messages = await _read_state(client, description, fork)
    user, point, edits = user or state.input.user, state.fork, fork.edits
    messages, edited_prompt = _with_prompt(messages, edits, point)
    if edits.results:
        messages = await _with_results(client, description, state, messages, edits.results)
    origin = Origin(
        kind="fork",
        workflow_id=description.id,
        run_id=description.run_id or "",
        step=point.step,
        conversation=point.key,
        traceparent=state.trace or None,
        request=request,
        tools=fork.tools,
        unrecorded=fork.unrecorded,
        model=edits.model,
        instructions=edits.instructions,
        edited_prompt=edited_prompt,
        adds_message=edits.message is not None,
    )
    run_input: StartInput = state.input.with_fields(
        messages=messages,
        traceparent=None,
        user=user,
        model=edits.model or state.input.model,
        max_steps=fork.max_steps or state.input.max_steps,
        version=fork.version,  # None: that of the facts, or for a rerun that of its conversation
        max_cost=fork.max_cost or state.input.max_cost,
        origin=origin,
        labels=labels_for(point.cache_key, state.input, user) if fork.keeps_agent else None,
        facts=point.facts.model_dump(mode="json") if point.facts and fork.keeps_agent else None,
        state=point.model_dump(mode="json", exclude={"facts", "edited"}),
    )
    _check_limits(run_input, fork, point)
    if fork.may_run_tools:
        run_input = await carry_over(client, description, run_input, messages, point.step)
    if edits.message is not None:
        run_input.messages.append(UserMessage.of(parse_prompt(edits.message)))
    if not any(isinstance(each, UserMessage) for each in run_input.messages) and "summary" not in point.conversation:
        raise ForkError(f"The run {description.id!r} has no prompt before step {point.step}; give a message.")
    has_parts = any(isinstance(each, list) for each in (edits.prompt, edits.message))
    return await store_content(run_input, check_messages=has_parts)


def _check_limits(run_input: RunInput, fork: Fork, point: ForkState) -> None:
    """Check that the limits of a fork let it begin, and can be counted.

    Raises:
        InvalidRunInputError: it has as many steps already, or the price of its model is not known.
    """
    is_by_pinned_prices = fork.keeps_agent and fork.edits.model is None
    if fork.max_cost and is_by_pinned_prices and point.facts and point.facts.model not in point.facts.prices:
        raise InvalidRunInputError(
            f'"max_cost" limits the fork, but the price of {point.facts.model} was not known when the run opened; choose a '
            "model whose price is known."
        )
    limit = run_input.max_steps or (point.facts.max_steps if point.facts else None)
    if limit is not None and point.steps >= limit:
        raise InvalidRunInputError(
            f'"max_steps" is {limit}, and counts the {point.steps} steps before step {point.step} too; give a larger one.'
        )


def _with_prompt(messages: list[Message], edits: Edits, point: ForkState) -> tuple[list[Message], int | None]:
    """The messages with the edited prompt, and its index: it replaces the last message of the user before the first step."""
    if edits.prompt is None:
        return messages, None
    if "summary" in point.conversation:
        raise ForkError(
            f"The first prompt is not sent in step {point.step}: a compaction has summarized it. Fork at an earlier step."
        )
    steps: Any = point.conversation.get("steps") or []
    end = steps[0]["at"] if steps else len(messages)
    at = next((index for index in reversed(range(end)) if isinstance(messages[index], UserMessage)), None)
    if at is None:
        raise ForkError("The run has no prompt that could be replaced; give a message instead.")
    return [*messages[:at], UserMessage.of(parse_prompt(edits.prompt)), *messages[at + 1 :]], at


async def _with_results(
    client: Client,
    description: WorkflowExecutionDescription,
    state: ResumeState,
    messages: Sequence[Message],
    results: Mapping[str, JsonValue],
) -> list[Message]:
    """The messages with edited results. Features that add a tool with such a result lose their state, but for what they have
    said is theirs then: they read the edited conversation instead.

    Raises:
        ForkError: a result is of no call before the step, or is not of its tool's type.
    """
    calls = {each.call_id: each.name for each in messages if isinstance(each, ToolMessage)}
    for call_id in results:
        if call_id not in calls:
            known = ", ".join([*calls][-10:]) or "none"
            raise ForkError(f"There is no call {call_id!r} with a result before the step. The newest are: {known}.")
    await _check_types(client, description.task_queue or "", state.input.agent, calls, results)
    assert state.fork is not None
    tools, edited = state.fork.facts.tools if state.fork.facts else {}, [*messages]
    of_features = {tools[name].feature for call_id in results if (name := calls[call_id]) in tools}
    kept = {name: each for name, each in state.fork.features.items() if name not in of_features}
    state.fork.features = kept | {name: each for name, each in state.fork.edited.items() if name in of_features}
    for index, each in enumerate(messages):
        if isinstance(each, ToolMessage) and each.call_id in results:
            value = results[each.call_id]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            edited[index] = each.model_copy(update={"text": text, "error": None, "content": None})
    return edited


async def _check_types(
    client: Client, task_queue: str, agent: str, calls: Mapping[str, str], results: Mapping[str, JsonValue]
) -> None:
    """Check edited results by the result types of the tools, as workers declare them today. `calls`: names of tools by ids.

    A tool without a known result type takes any, and so does each if no worker answers.

    Raises:
        ForkError: a result is not of its tool's type.
    """
    agents = await AgentReader(client, task_queue).read() or {}
    tools = agents.get(agent, {}).get("tools", [])
    schemas = {tool["name"]: tool["result"] for tool in tools if tool.get("result")}
    for call_id, value in results.items():
        schema = schemas.get(name := calls[call_id])
        if schema and (faults := schema_faults(schema_validator(schema), value)):
            where, what = faults[0]
            field = f"`{where}`" if where else "it"
            raise ForkError(
                f"The result for the call {call_id!r} is not of the result type of `{name}`: {field} {what}."
            )
