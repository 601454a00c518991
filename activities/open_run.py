"""Open a run: resolve the agent on this worker, pin what the workflow schedules by, begin the trace."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from dataclasses import dataclass

from temporalio import activity

from mulligan.activities.mcp.servers import OfferedTools
from mulligan.activities.models.resolve_models import compact_model, model_patience, resolve_models
from mulligan.activities.run_data.definitions import define
from mulligan.activities.run_data.find_input import input_of
from mulligan.activities.services import Services
from mulligan.agent import Agent, AgentTool
from mulligan.durations import seconds
from mulligan.errors import DeclarationError, InvalidRunInputError
from mulligan.model_name import check_model
from mulligan.observe.spans import AgentRun
from mulligan.run_input import RunInput
from mulligan.tool import Tool
from mulligan.wire.agent_facts import OPEN_RUN, AgentFacts, Definition, ModelFacts, OpenedRun, OpenRun, ToolFacts

INSTRUCTIONS_LIMIT = 50.0
DEFINITION_BYTES = 1_500_000
"""Of what a provider is told of an agent: it is a part of this activity's result, which ends at 2 MB."""


@dataclass(frozen=True)
class OpenRunActivity:
    """The activity, with what the worker gives it."""

    services: Services

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, order: OpenRun) -> OpenedRun:
        """Resolve the agent and open its trace.

        Raises:
            InvalidRunInputError: no such agent here, a model that cannot be, or a limit of cost without a price.
        """
        agent = self.services.registry.agents.get(order.agent)
        if agent is None:
            known = ", ".join(sorted(self.services.registry.agents)) or "none"
            near = difflib.get_close_matches(order.agent, self.services.registry.agents, n=1)
            meant = f' Did you mean "{near[0]}"?' if near else ""
            raise InvalidRunInputError(
                f'"agent" is "{order.agent}", but this worker serves no agent of that name; it serves: {known}.{meant}'
            )
        run_input = order.input or await input_of(order.conversation, whole=not isinstance(agent.instructions, str))
        if run_input.model is not None:
            try:
                check_model(run_input.model, '"model"')
            except DeclarationError as error:
                raise InvalidRunInputError(str(error)) from None
        model = run_input.model or agent.models[0]
        models = resolve_models(agent, run_input, self.services.prices)
        # Side by side: each may take most of the time that opening a run has.
        instructions, offered = await asyncio.gather(
            self._instructions(agent, run_input), self.services.mcp_servers.offer_tools(agent)
        )
        definition = define(agent, instructions, model, offered)
        if (length := len(definition.model_dump_json().encode())) > DEFINITION_BYTES:
            raise InvalidRunInputError(
                f'"agent" is "{agent.name}", whose instructions and tools take {length:,} bytes; a run can carry '
                f"{DEFINITION_BYTES:,}."
            )
        info = activity.info()
        run = AgentRun(
            agent=agent.name,
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
            first_run_id=order.first_run_id,
            conversation=order.conversation,
            turn=order.turn,
            parent=order.parent,
            metadata=run_input.metadata,
            call_id=order.call_id,
            resumed_from=run_input.resumed_from,
        )
        trace = self.services.telemetry.open_run(run, at=info.scheduled_time.timestamp())
        await self.services.telemetry.wait_for_parent_spans()
        facts = _facts(agent, model, models, definition, self.services.definitions.keep(definition), offered)
        facts.carry_bytes = self.services.carry_bytes
        facts.model_task_queue = self.services.model_task_queue
        return OpenedRun(facts=facts, trace=trace)

    async def _instructions(self, agent: Agent, run_input: RunInput) -> str:
        if isinstance(agent.instructions, str):
            return agent.instructions
        given = await self.services.runtime.run(agent.instructions, (run_input,), limit=INSTRUCTIONS_LIMIT)
        assert not inspect.isawaitable(given)
        return str(given)


def _facts(
    agent: Agent, model: str, models: ModelFacts, definition: Definition, digest: str, offered: OfferedTools
) -> AgentFacts:
    tools = [*agent.tools, *offered.tools]
    return AgentFacts(
        **dict(models),
        max_steps=agent.max_steps,
        max_total_tokens=agent.max_total_tokens,
        model_timeout=seconds(agent.model_timeout),
        model_patience=model_patience(agent),
        model_attempts=agent.model_attempts,
        tools={tool.name: _tool_facts(agent, tool, offered.originals.get(tool.name)) for tool in tools},
        definition=definition,
        digest=digest,
        structured=agent.declared_output is not None,
        guarded=agent.guard is not None or any(callable(tool.needs_approval) for tool in tools),
        compact_at=agent.compact_at,
        compact_model=compact_model(agent, model),
        compacts_given=agent.compact_at is not None,
    )


def _tool_facts(agent: Agent, tool: Tool, mcp: str | None) -> ToolFacts:
    facts = ToolFacts(
        timeout=tool.timeout.total_seconds(),
        queue_timeout=tool.queue_timeout.total_seconds() if tool.task_queue else None,
        attempts=tool.attempts,
        task_queue=tool.task_queue,
        local=tool.local,
        approval_timeout=_waits(tool, agent),
        mcp=mcp,
    )
    if isinstance(tool, AgentTool):
        facts.agent, facts.max_depth, facts.share_budget = tool.agent.name, agent.max_depth, tool.share_budget
        if tool.share_budget:
            facts.max_total_tokens, facts.max_cost = tool.agent.max_total_tokens, tool.agent.max_cost
    return facts


def _waits(tool: Tool, agent: Agent) -> float | None:
    """Seconds after which nobody's word on a call is waited for any more; None: without end, or it never waits."""
    if not (tool.needs_approval or tool.asks_person):
        return None
    nearest = agent.approval_timeout if tool.approval_timeout is None else tool.approval_timeout
    return None if nearest is None else seconds(nearest)
