"""The activity by which another agent takes a conversation over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temporalio import activity

from mulligan.activities.agent_not_served import decline, other_queues
from mulligan.activities.open_run import check_metadata
from mulligan.activities.pin_facts import pin_facts
from mulligan.activities.run_data.query_workflow import query_this_workflow
from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.errors import InvalidRunInputError, ToolExecutionError
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.agent_version import AgentVersion
from mulligan.wire.conversation_ref import REQUEST_QUERY
from mulligan.wire.handoffs import HAND_OVER, HandoffOutcome, HandOver
from mulligan.wire.request_labels import prompt_cache_key


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return [HandOverActivity(services).hand_over]


@dataclass(frozen=True)
class HandOverActivity:
    """The activity `hand_over`."""

    services: Services

    @activity.defn(name=HAND_OVER)
    async def hand_over(self, request: HandOver) -> HandoffOutcome:
        """Pin the facts of the agent that takes the conversation over, and write the span of the call.

        Where the agent cannot be used in this run, another activity writes the span: the policy for that failure is of the
        agent that has the conversation now, which this worker need not serve.

        Raises:
            ApplicationError: this worker does not serve the agent that takes the conversation over.
            RPCError: whether there is another worker is not known, as Temporal does not answer. The activity is tried again.
        """
        services, call, began = self.services, request.call, time.time()
        number = activity.info().attempt
        try:
            chosen = await services.agents.versions.chosen(request.agent, None, _conversation(request))
            if chosen is None and not request.is_file:
                raise decline(services, request.agent, await other_queues(services))
            facts = await self._facts(*chosen, request) if chosen and not request.is_pinned else None
        except InvalidRunInputError as error:
            failed = ToolExecutionError(
                f"The conversation was not handed over to `{request.agent}`. {error.message}",
                kind="tool_exception",
                tool_name=call.name,
                call_id=call.id,
            )
            return HandoffOutcome(attempts=number, failure_without_policy=failed.to_json())
        text = f"The conversation was handed over: you are the agent `{request.agent}` now. Go on in its place."
        services.telemetry.call_span(
            request, arguments=request.arguments, start=began, attempt=number, handed_to=request.agent
        ).succeed(text)
        services.cache_result(request.where, call, text, None)
        return HandoffOutcome(text=text, attempts=number, facts=facts)

    async def _facts(self, declared: Agent, version: AgentVersion | None, request: HandOver) -> AgentFacts:
        """The facts of the agent for the rest of the run.

        Raises:
            InvalidRunInputError: its tools cannot be used, the run's cost is limited and a price is unknown, or the metadata
                is too large for an agent whose tools a function returns.
        """
        services, run_input = self.services, request.input
        check_metadata(services, declared, run_input)
        agent = await services.agents.opened(declared, run_input)
        if callable(agent.instructions):
            prompt = await query_this_workflow(REQUEST_QUERY, request.where.conversation, str)
            run_input = run_input.model_copy(update={"prompt": prompt})
        facts = await pin_facts(services, agent, run_input, may_refuse=False)
        definition, facts.version = facts.definition, version
        facts.definition = await services.definitions.pinned(definition, agent.name, run_input.tenant)
        services.agents.keep(request.where.trace, agent)
        facts.digest = services.definitions.keep(definition)
        facts.model_task_queue = services.model_task_queue
        return facts


def _conversation(request: HandOver) -> str:
    """The key of the conversation, which decides on the label of an agent that is a file."""
    inherited = request.where.labels.cache_key if request.where.labels else ""
    return inherited or prompt_cache_key(activity.info().workflow_id or "", request.where.conversation, None)
