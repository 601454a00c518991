"""Open a run: resolve its agent on this worker, pin the facts that the workflow schedules by, and open the trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity

from mulligan.activities.agent_not_served import decline, other_queues, unknown_agent
from mulligan.activities.mcp.servers import OfferedTools
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.resolve_models import model_patience, resolve_models
from mulligan.activities.run_data.definitions import define
from mulligan.activities.run_data.forked_facts import forked_facts
from mulligan.activities.run_data.query_workflow import QUERY_TIMEOUT, this_workflow
from mulligan.activities.services import Services
from mulligan.agent import Agent, AgentTool
from mulligan.durations import seconds
from mulligan.errors import DeclarationError, InvalidRunInputError
from mulligan.model_name import ModelName, can_be_batched, check_model
from mulligan.observe.spans import AgentRun
from mulligan.run_input import RunInput
from mulligan.schema.well_formed import well_formed
from mulligan.tool import Tool
from mulligan.wire.agent_facts import (
    INPUT_QUERY,
    OPEN_RUN,
    AgentFacts,
    Definition,
    ModelFacts,
    OpenedRun,
    OpenRun,
    ToolFacts,
)
from mulligan.wire.conversation_ref import INPUT_MESSAGES_QUERY, Page, PageRequest
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.search_attributes import AGENT_ATTRIBUTE

INSTRUCTIONS_LIMIT = 50.0
"""Seconds that an `instructions` function may take."""
INPUT_PAGE = 10_000
"""Messages of a run's input that one query asks for."""
QUERIED_MESSAGE = 2_096_500
"""Bytes of one message as JSON that a query can answer: with the page around it, the server's 2 MiB. Our clients send less
(compressed_input.LONGEST_MESSAGE)."""
METADATA_BYTES = 1_200_000
"""Bytes of a run's metadata as JSON. The input of each tool call has it, with up to size_limits.ARGUMENTS_BYTES of
arguments; the server terminates a run whose input of an activity has more than 2 MB."""
NO_STORAGE = (
    '"agent" is "{agent}", whose models are called in batches: its workers need a storage for the requests. Set '
    "MULLIGAN_CONTENT_DIR, or MULLIGAN_EXTERNAL_STORAGE, on the workers."
)
DEFINITION_BYTES = 1_500_000
"""Bytes of an agent's definition for the provider. It is part of this activity's result, whose limit is 2 MB."""


@dataclass(frozen=True)
class OpenRunActivity:
    """The activity `open_run`."""

    services: Services

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, request: OpenRun) -> OpenedRun:
        """Resolve the agent and open its trace.

        Raises:
            InvalidRunInputError: the agent or the model does not exist, the cost is limited and a price is unknown, or a
                message or the metadata is too large.
            ApplicationError: this worker does not serve the agent, but another one may.
        """
        services, info = self.services, activity.info()
        declared = await self._agent(request.agent)
        run_input = await self._input(request, declared)
        agent = await services.agents.opened(declared, run_input)
        resolving = forked_facts if run_input.forked_from and run_input.forked_from.facts else self._facts
        # Concurrently: each may take most of the time that opening a run has.
        facts, attributes = await asyncio.gather(resolving(services, agent, run_input), self._search_attributes())
        if (length := len(facts.definition.model_dump_json().encode())) > DEFINITION_BYTES:
            raise InvalidRunInputError(
                f'"agent" is "{agent.name}", whose instructions and tools take {length:,} bytes; a run can carry '
                f"{DEFINITION_BYTES:,}."
            )
        run = AgentRun(
            agent=agent.name,
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
            first_run_id=request.first_run_id,
            conversation=request.conversation,
            turn=request.turn,
            parent=request.parent,
            metadata=run_input.metadata,
            call_id=request.call_id,
            resumed_from=run_input.resumed_from,
            forked_from=run_input.forked_from,
        )
        trace = services.telemetry.open_run(run, at=info.scheduled_time.timestamp())
        services.agents.keep(trace, agent)
        await services.telemetry.wait_for_parent_spans()
        facts.digest = services.definitions.keep(facts.definition)
        facts.carry_bytes = services.carry_bytes
        facts.model_task_queue = services.model_task_queue
        facts.search_attributes = attributes
        return OpenedRun(facts=facts, trace=trace)

    async def _facts(self, services: Services, agent: Agent, run_input: RunInput) -> AgentFacts:
        """The facts of an agent as it is declared now.

        Raises:
            InvalidRunInputError: a price is unknown, or the worker has no storage for batches.
        """
        has_budget = services.budgets.is_limited(run_input.tenant)
        models = resolve_models(agent, run_input, services.prices, has_budget=has_budget)
        instructions, offered = await asyncio.gather(
            self._instructions(agent, run_input), services.mcp_servers.offer_tools(agent)
        )
        model = run_input.model or agent.models[0]
        definition = define(agent, instructions, model, offered, _client_instructions(agent, run_input))
        own_models = [run_input.model] if run_input.model else agent.models
        if agent.has_feature("batch") and services.contents is None and can_be_batched(own_models):
            raise InvalidRunInputError(NO_STORAGE.format(agent=agent.name))
        facts = _facts(agent, own_models, models, definition, offered)
        facts.instructions_chars = len(instructions) if definition.instructions != instructions else None
        return facts

    async def _agent(self, name: str) -> Agent:
        """The agent of that name.

        Raises:
            InvalidRunInputError: no worker of the task queue serves it.
            ApplicationError: only another one may serve it. The workflow opens the run there.
            RPCError: whether there is another one is not known, as Temporal does not answer. The activity is tried again.
        """
        agent = self.services.registry.agents.get(name)
        if agent is not None:
            return agent
        if queues := await other_queues(self.services):
            raise decline(self.services, name, queues)
        raise InvalidRunInputError(unknown_agent(self.services, name))

    async def _input(self, request: OpenRun, agent: Agent) -> RunInput:
        """The run's input, of which nothing is too large.

        Raises:
            InvalidRunInputError: a message or the metadata is too large, or the worker does not know the model.
        """
        is_limited = self.services.carry_bytes is None
        if is_limited:
            # Before the query for the input, which could not be answered.
            _check_size("a message", request.longest_message or 0, QUERIED_MESSAGE)
        run_input = request.input or await _query_input(
            request.conversation, whole=not isinstance(agent.instructions, str)
        )
        if run_input.model is not None:
            _check_model(run_input.model, self.services.providers)
        if is_limited:
            # A call's input has it twice where any worker must be able to call the function of the tools.
            most = METADATA_BYTES // 2 if callable(agent.tools) else METADATA_BYTES
            _check_size("metadata", _json_bytes(run_input.metadata), most)
        return run_input

    async def _search_attributes(self) -> list[str]:
        """The search attributes that the run sets. A workflow of a user's own decides about its attributes itself."""
        if activity.info().workflow_type != AGENT_WORKFLOW:
            return []
        client = activity.client()
        names = await self.services.registered_attributes.names(client)
        if client.data_converter.payload_codec is not None:
            names -= {AGENT_ATTRIBUTE.name}  # Temporal never encrypts search attributes
        return sorted(names)

    async def _instructions(self, agent: Agent, run_input: RunInput) -> str:
        if run_input.forked_from is not None and run_input.forked_from.instructions is not None:
            return run_input.forked_from.instructions
        if isinstance(agent.instructions, str):
            return agent.instructions
        limit = INSTRUCTIONS_LIMIT
        instructions = await self.services.runtime.run(agent.instructions, (run_input,), limit=limit, read=str)
        return str(well_formed(instructions))


def _client_instructions(agent: Agent, run_input: RunInput) -> str:
    """What the client wants the agent to observe, as far as the agent accepts it.

    Those that a conversation had before its agent began to refuse them are left out.

    Raises:
        InvalidRunInputError: the agent refuses such instructions.
    """
    given = (run_input.client_instructions or "").strip()
    is_new = run_input.resumed_from is None and run_input.forked_from is None
    if given and agent.client_instructions == "refuse" and is_new:
        raise InvalidRunInputError(
            f'"client_instructions" is refused: the agent "{agent.name}" has its own instructions. Leave it out.'
        )
    return given if agent.client_instructions == "context" else ""


def _check_model(model: str, providers: AvailableProviders) -> None:
    """Check the model that a run's input names. Its endpoint must be one of this worker: a client sends no address.

    Raises:
        InvalidRunInputError: there is no such provider or endpoint.
    """
    try:
        check_model(model, '"model"')
    except DeclarationError as error:
        raise InvalidRunInputError(str(error)) from None
    endpoint = ModelName.parse(model).endpoint
    if endpoint and endpoint not in providers.endpoints:
        known = ", ".join(sorted(providers.endpoints)) or "none"
        raise InvalidRunInputError(
            f'"model" is {model!r}, but the worker does not know the endpoint {endpoint!r}; it knows: {known}.'
        )


def _json_bytes(metadata: Mapping[str, str]) -> int:
    return len(json.dumps(metadata, ensure_ascii=False).encode(errors="replace"))


def _check_size(what: str, length: int, most: int) -> None:
    """Refuse what Temporal could not carry without external storage.

    Raises:
        InvalidRunInputError: it is too large.
    """
    if length > most:
        raise InvalidRunInputError(
            f"The run's input: {what} has {length:,} bytes; {most:,} are the most without external storage "
            "(MULLIGAN_EXTERNAL_STORAGE)."
        )


def _facts(
    agent: Agent,
    own_models: Sequence[str],
    models: ModelFacts,
    definition: Definition,
    offered: OfferedTools,
) -> AgentFacts:
    tools = [*agent.listed_tools, *agent.feature_tools, *offered.tools]
    return AgentFacts(
        **dict(models),
        max_steps=agent.max_steps,
        max_repeats=agent.max_repeats,
        max_total_tokens=agent.max_total_tokens,
        max_sub_runs=agent.max_sub_runs,
        model_timeout=seconds(agent.model_timeout),
        model_patience=model_patience(agent),
        model_attempts=agent.model_attempts,
        features={each.name: dict(each.facts(own_models)) for each in agent.features},
        tools={tool.name: _tool_facts(agent, tool, offered.originals.get(tool.name)) for tool in tools},
        definition=definition,
        digest="",
        structured=agent.declared_output is not None,
        tools_by_function=agent.is_of_run,
        guarded=agent.guard is not None or any(callable(tool.needs_approval) for tool in tools),
    )


def _tool_facts(agent: Agent, tool: Tool, mcp: str | None) -> ToolFacts:
    defaults = {name: value for each in agent.features for name, value in each.tool_defaults().items()}
    facts = ToolFacts(
        timeout=tool.timeout.total_seconds(),
        queue_timeout=tool.queue_timeout.total_seconds() if tool.task_queue else None,
        attempts=tool.attempts,
        task_queue=tool.task_queue,
        local=tool.local,
        approval_timeout=_person_limit(tool, tool.approval_timeout, defaults.get("approval_timeout")),
        approval_reminder=_person_limit(tool, tool.approval_reminder, defaults.get("approval_reminder")),
        asks_person=bool(tool.needs_approval) or tool.asks_person,
        mcp=mcp,
        may_ask_person=tool.asks,
        once=tool.once,
        deferred=tool.deferred,
        deferred_timeout=seconds(tool.deferred_timeout) if tool.deferred_timeout else None,
        makes_calls=tool in agent.feature_tools,
        on_cancel=tool.on_cancel is not None,
    )
    if isinstance(tool, AgentTool):
        facts.agent, facts.max_depth, facts.share_budget = tool.agent.name, agent.max_depth, tool.share_budget
        if tool.share_budget:
            facts.max_total_tokens, facts.max_cost = tool.agent.max_total_tokens, tool.agent.max_cost
    return facts


def _person_limit(tool: Tool, own: timedelta | None, default: float | timedelta | None) -> float | None:
    """Seconds of an option about waits for a person: the tool's `own`, or else the agent's `default`.

    None if neither is set, or if the tool's calls never wait for a person.
    """
    if not (tool.needs_approval or tool.asks_person or tool.asks):
        return None
    limit = default if own is None else own
    return None if limit is None else seconds(limit)


async def _query_input(conversation: str, *, whole: bool) -> RunInput:
    """Query the workflow for the input of a conversation's newest turn. If not `whole`, its messages may be missing."""
    workflow = this_workflow()
    run_input: RunInput = await workflow.query(
        INPUT_QUERY, conversation, result_type=RunInput, rpc_timeout=QUERY_TIMEOUT
    )
    while whole:
        page = await workflow.query(
            INPUT_MESSAGES_QUERY,
            PageRequest(conversation=conversation, since=len(run_input.messages), count=INPUT_PAGE),
            result_type=Page,
            rpc_timeout=QUERY_TIMEOUT,
        )
        if not page.messages:
            break
        run_input.messages += page.messages
    return run_input
