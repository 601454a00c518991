"""Open a run: resolve the agent on this worker, pin what the workflow schedules by, begin the trace."""

from __future__ import annotations

import difflib
import inspect

from temporalio import activity

from activities.definitions import QUERY_TIMEOUT, Definitions, define, this_workflow
from activities.providers.scripted import SUMMARY
from activities.tool_runtime import ToolRuntime
from mulligan.agent import Agent, Registry, check_model, seconds
from mulligan.errors import DeclarationError, InvalidRunInputError
from mulligan.handoff import (
    INPUT_QUERY,
    OPEN_RUN,
    AgentFacts,
    Definition,
    OpenedRun,
    OpenRun,
    ToolFacts,
)
from mulligan.telemetry import Telemetry
from mulligan.tool import Tool
from mulligan.values import RunInput

INSTRUCTIONS_LIMIT = 50.0
DEFINITION_BYTES = 1_500_000
"""Of what a provider is told of an agent: it is a part of this activity's result, which ends at 2 MB."""


class OpenRunActivity:
    """The activity, with what the worker gives it."""

    def __init__(
        self,
        registry: Registry,
        definitions: Definitions,
        telemetry: Telemetry,
        runtime: ToolRuntime,
        carry_bytes: int | None = None,
        model_task_queue: str | None = None,
    ) -> None:
        self._registry = registry
        self._definitions = definitions
        self._telemetry = telemetry
        self._runtime = runtime
        self._carry_bytes = carry_bytes
        self._model_task_queue = model_task_queue

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, order: OpenRun) -> OpenedRun:
        """Resolve the agent and open its trace.

        Raises:
            InvalidRunInputError: no such agent here, or a model that cannot be.
        """
        agent = self._registry.agents.get(order.agent)
        if agent is None:
            known = ", ".join(sorted(self._registry.agents)) or "none"
            near = difflib.get_close_matches(order.agent, self._registry.agents, n=1)
            meant = f' Did you mean "{near[0]}"?' if near else ""
            raise InvalidRunInputError(
                f'"agent" is "{order.agent}", but this worker serves no agent of that name; it serves: {known}.{meant}'
            )
        run_input = order.input or await this_workflow().query(
            INPUT_QUERY, order.conversation, result_type=RunInput, rpc_timeout=QUERY_TIMEOUT
        )
        if run_input.model is not None:
            try:
                check_model(run_input.model, '"model"')
            except DeclarationError as error:
                raise InvalidRunInputError(str(error)) from None
        model = run_input.model or agent.model
        definition = define(agent, await self._instructions(agent, run_input), model)
        if (length := len(definition.model_dump_json().encode())) > DEFINITION_BYTES:
            raise InvalidRunInputError(
                f'"agent" is "{agent.name}", whose instructions and tools take {length:,} bytes; a run can carry '
                f"{DEFINITION_BYTES:,}."
            )
        info = activity.info()
        trace = self._telemetry.open_run(
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
            first_run_id=order.first_run_id,
            conversation=order.conversation,
            turn=order.turn,
            agent=agent.name,
            parent=order.parent,
            metadata=run_input.metadata,
            at=info.scheduled_time.timestamp(),
        )
        await self._telemetry.parents_sent()
        facts = _facts(agent, model, definition, self._definitions.keep(definition))
        facts.carry_bytes = self._carry_bytes
        facts.model_task_queue = self._model_task_queue
        return OpenedRun(facts=facts, trace=trace)

    async def _instructions(self, agent: Agent, run_input: RunInput) -> str:
        if isinstance(agent.instructions, str):
            return agent.instructions
        given = await self._runtime.run(agent.instructions, (run_input,), limit=INSTRUCTIONS_LIMIT)
        assert not inspect.isawaitable(given)
        return str(given)


def _facts(agent: Agent, model: str, definition: Definition, digest: str) -> AgentFacts:
    return AgentFacts(
        model=agent.model,
        max_steps=agent.max_steps,
        max_total_tokens=agent.max_total_tokens,
        model_timeout=seconds(agent.model_timeout),
        model_patience=seconds(agent.model_patience),
        model_attempts=agent.model_attempts,
        tools={
            tool.name: ToolFacts(
                timeout=tool.timeout.total_seconds(),
                queue_timeout=tool.queue_timeout.total_seconds() if tool.task_queue else None,
                attempts=tool.attempts,
                task_queue=tool.task_queue,
                local=tool.local,
                approval_timeout=_waits(tool, agent),
            )
            for tool in agent.tools
        },
        definition=definition,
        digest=digest,
        structured=agent.answers is not None,
        guarded=agent.guard is not None or any(callable(tool.needs_approval) for tool in agent.tools),
        compact_at=agent.compact_at,
        compact_model=_compact_model(agent, model),
    )


def _waits(tool: Tool, agent: Agent) -> float | None:
    """Seconds after which nobody's word on a call is waited for any more; None: without end, or it never waits."""
    if not (tool.needs_approval or tool.asks_person):
        return None
    nearest = agent.approval_timeout if tool.approval_timeout is None else tool.approval_timeout
    return None if nearest is None else seconds(nearest)


def _compact_model(agent: Agent, model: str) -> str | None:
    """Who sums up where it is not the run's own model: a script has no turn for that."""
    by_script = agent.compact_at is not None and model.startswith("scripted:")
    return agent.compact_model or (f"scripted:{SUMMARY}" if by_script else None)
