"""Open a run: resolve its agent on this worker, pin the facts that the workflow schedules by, and open the trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from temporalio import activity

from mulligan.activities.agent_not_served import decline, other_queues, unknown_agent
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.pin_facts import pin_facts
from mulligan.activities.run_data.forked_facts import forked_facts, pinned_version
from mulligan.activities.run_data.query_workflow import QUERY_TIMEOUT, this_workflow
from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.client.origins.carry_over import check_unchanged
from mulligan.errors import DeclarationError, InvalidRunInputError
from mulligan.model_name import ModelName, check_model
from mulligan.observe.spans import TracedTurn
from mulligan.wire.agent_facts import INPUT_QUERY, OPEN_RUN, OpenedRun, OpenRun
from mulligan.wire.agent_version import AgentVersion
from mulligan.wire.conversation_ref import INPUT_MESSAGES_QUERY, Page, PageRequest
from mulligan.wire.request_labels import prompt_cache_key
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.search_attributes import AGENT_ATTRIBUTE, ORIGIN_ATTRIBUTE
from mulligan.wire.start_input import StartInput

INPUT_PAGE = 10_000
"""Messages of a run's input that one query asks for."""
QUERIED_MESSAGE = 2_096_500
"""Bytes of one message as JSON that a query can answer: with the page around it, the server's 2 MiB. Our clients send less
(compressed_input.LONGEST_MESSAGE)."""
METADATA_BYTES = 1_200_000
"""Bytes of a run's metadata as JSON. The input of each tool call has it, with up to size_limits.ARGUMENTS_BYTES of
arguments; the server terminates a run whose input of an activity has more than 2 MB."""


@dataclass(frozen=True)
class OpenRunActivity:
    """The activity `open_run`."""

    services: Services

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, request: OpenRun) -> OpenedRun:
        """Resolve the agent and open its trace.

        Raises:
            InvalidRunInputError: the agent or the model does not exist, the cost is limited and a price is unknown, a
                message or the metadata is too large, or the run from which it goes on is being undone.
            ApplicationError: this worker does not serve the agent, but another one may.
        """
        services, info = self.services, activity.info()
        if services.carry_bytes is None:
            # Before the query for the input, which could not be answered.
            _check_size("a message", request.longest_message or 0, QUERIED_MESSAGE)
        run_input = request.input or await _query_input(request.conversation)
        declared, version = await self._agent(request, run_input)
        run_input = await self._whole_input(request, run_input, declared)
        agent = await services.agents.opened(declared, run_input)
        resolving = forked_facts if run_input.carried.facts else pin_facts
        # Concurrently: each may take most of the time that opening a run has.
        facts, attributes, _ = await asyncio.gather(
            resolving(services, agent, run_input),
            self._search_attributes(),
            check_unchanged(activity.client(), run_input),
        )
        definition, facts.version = facts.definition, version
        facts.definition = await services.definitions.pinned(definition, agent.name, run_input.tenant)
        ids = {"workflow_id": info.workflow_id or "", "run_id": info.workflow_run_id or ""}
        run = TracedTurn.opened_by(request, run_input, **ids, version=version)
        trace = services.telemetry.open_run(
            run,
            at=info.scheduled_time.timestamp(),
            instructions=definition.instructions,
            tools=[*map(dict, definition.visible_tools)] if services.telemetry.content else (),
        )
        services.agents.keep(trace, agent)
        await services.telemetry.wait_for_parent_spans()
        facts.digest = services.definitions.keep(definition)
        facts.carry_bytes = services.carry_bytes
        facts.model_task_queue = services.model_task_queue
        facts.search_attributes = attributes
        return OpenedRun(facts=facts, trace=trace)

    async def _agent(self, request: OpenRun, run_input: StartInput) -> tuple[Agent, AgentVersion | None]:
        """The agent of the run, and its version if it is a file: that of the earlier run for a fork of its steps.

        Raises:
            InvalidRunInputError: no worker of the task queue serves it, or it has no such version.
            ApplicationError: only another one may serve it. The workflow opens the run there.
            RPCError: whether there is another one is not known, as Temporal does not answer. The activity is tried again.
            StorageError: the content storage does not have the version, or does not answer.
        """
        name, versions = request.agent, self.services.agents.versions
        if (pinned := pinned_version(run_input)) is not None:
            if (agent := await versions.agent_of(name, pinned, begins=True)) is not None:
                return agent, pinned
        else:
            conversation = prompt_cache_key(activity.info().workflow_id or "", request.conversation, run_input)
            if (chosen := await versions.chosen(name, run_input.version, conversation)) is not None:
                return chosen
        if queues := await other_queues(self.services):
            raise decline(self.services, name, queues)
        raise InvalidRunInputError(unknown_agent(self.services, name))

    async def _whole_input(self, request: OpenRun, run_input: StartInput, agent: Agent) -> StartInput:
        """The run's input, with its messages where the agent's instructions need them.

        Raises:
            InvalidRunInputError: the metadata is too large, or the worker does not know the model.
        """
        if request.input is None and not isinstance(agent.instructions, str):
            run_input = await _with_messages(request.conversation, run_input)
        if run_input.model is not None:
            _check_model(run_input.model, self.services.providers)
        check_metadata(self.services, agent, run_input)
        return run_input

    async def _search_attributes(self) -> list[str]:
        """The search attributes that the run sets. A workflow of a user's own decides about its attributes itself."""
        if activity.info().workflow_type != AGENT_WORKFLOW:
            return []
        client = activity.client()
        names = await self.services.registered_attributes.names(client)
        if client.data_converter.payload_codec is not None:
            names -= {AGENT_ATTRIBUTE.name}  # Temporal never encrypts search attributes
        return sorted(names - {ORIGIN_ATTRIBUTE.name})  # a fork is started with it


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


def check_metadata(services: Services, agent: Agent, run_input: StartInput) -> None:
    """Check that the activities of an agent can get the run's metadata.

    Raises:
        InvalidRunInputError: it is too large.
    """
    if services.carry_bytes is None:
        # A call's input has it twice where any worker must be able to call the function of the tools.
        most = METADATA_BYTES // 2 if callable(agent.tools) else METADATA_BYTES
        _check_size("metadata", _json_bytes(run_input.metadata) + _json_bytes(run_input.client_metadata), most)


def _json_bytes(metadata: Mapping[str, str]) -> int:
    return len(json.dumps(metadata, ensure_ascii=False).encode(errors="replace"))


def _check_size(what: str, length: int, most: int) -> None:
    """Refuse what Temporal could not carry without external storage.

    Raises:
        InvalidRunInputError: it is too large.
    """
    if length > most:
        raise InvalidRunInputError(
            f"The run's input: {what} has {length:,} bytes; without external storage the limit is {most:,} "
            "(MULLIGAN_EXTERNAL_STORAGE)."
        )


async def _query_input(conversation: str) -> StartInput:
    """Query the workflow for the input of a conversation's newest turn. Its messages may be missing."""
    run_input: StartInput = await this_workflow().query(
        INPUT_QUERY, conversation, result_type=StartInput, rpc_timeout=QUERY_TIMEOUT
    )
    return run_input


async def _with_messages(conversation: str, run_input: StartInput) -> StartInput:
    """The input of a conversation's newest turn with those of its messages that are missing."""
    workflow = this_workflow()
    while True:
        page = await workflow.query(
            INPUT_MESSAGES_QUERY,
            PageRequest(conversation=conversation, since=len(run_input.messages), count=INPUT_PAGE),
            result_type=Page,
            rpc_timeout=QUERY_TIMEOUT,
        )
        if not page.messages:
            return run_input
        run_input.messages += page.messages
