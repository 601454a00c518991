"""The agents as runs have them: an agent whose tools a function returns has those of the run; for some runs it has none."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from mulligan.activities.agent_files.agent_versions import AgentVersions
from mulligan.activities.registry import Registry
from mulligan.activities.tool_running.resources import Resources
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.activities.tool_running.tool_context import given_to
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.agent import Agent, AgentTool
from mulligan.errors import DeclarationError, InvalidRunInputError, truncated
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.plain_function import callable_name
from mulligan.wire.run_context import RunContext
from mulligan.wire.start_input import StartInput

logger = logging.getLogger("mulligan.tools")

TOOLS_LIMIT = 3.0
"""Seconds that a `tools` function may take. Activities call it on each worker that has not opened the run, before they send
heartbeats; those that write spans have ten seconds in all."""
SECONDS_BETWEEN_TRIES = 0.5
"""How long a failure to list the tools of a run counts: an activity may look for its agent more than once."""
MOST_KEPT = 1_000
"""Runs whose agents are in a worker's memory; those that were not used for the longest time go first."""


@dataclass(frozen=True)
class RunAgents:
    """The agents of the runs on this worker. `endpoints`: the names of those that it knows."""

    registry: Registry
    runtime: ToolRuntime
    endpoints: Container[str]
    versions: AgentVersions
    resources: Resources
    _kept: OrderedDict[tuple[str, str], Agent] = field(default_factory=OrderedDict)
    """By the trace of the run, which no other turn of any conversation has, and the agent's name."""
    _failed: OrderedDict[tuple[str, str], float] = field(default_factory=OrderedDict)
    """When the tools of a run could not be listed, by its trace and its agent."""

    async def opened(self, agent: Agent, run_input: StartInput) -> Agent:
        """The agent of a run that opens.

        Raises:
            InvalidRunInputError: the function of its tools failed, or returned tools that cannot be used; or the agent
                cannot have the output of this run.
        """
        if run_input.carried.model_only:
            return agent.model_only()
        opened = await self._with_tools(agent, run_input)
        if run_input.carried.output_schema is None:
            return opened
        try:
            return opened.with_output(run_input.carried.output_schema)
        except (TypeError, DeclarationError) as error:
            raise InvalidRunInputError(truncated(f'"output_schema" cannot be used: {error_text(error)}')) from error

    async def _with_tools(self, agent: Agent, run_input: StartInput) -> Agent:
        """The agent with the tools of a run.

        Raises:
            InvalidRunInputError: as of `opened`.
        """
        if not callable(agent.tools):
            return agent
        resources = self.resources.of_agent(agent.name)
        try:
            given = given_to(agent.tools, agent.name, run_input.without_conversation, resources)
            tools = await self.runtime.ask(agent.tools, given, limit=TOOLS_LIMIT, read=_as_list)
            built = agent.with_tools(tools)
            built.check_tools()
            self._check_reachable(built)
        except TookTooLong:
            why = f"it took more than {TOOLS_LIMIT:g} s."
        except DeclarationError as error:
            why = error_text(error)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            why = f"it raised {type_name(error)}: {error_text(error)}"
        else:
            return built
        name = callable_name(agent.tools)
        raise InvalidRunInputError(
            truncated(f'"agent" is "{agent.name}", whose tools the function `{name}` returns: {why}')
        )

    def keep(self, context_trace: str, agent: Agent) -> None:
        """Keep the agent of a run that was opened, for its activities on this worker."""
        if agent.is_of_run:
            self._kept[context_trace, agent.name] = agent
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)

    async def find(self, context: RunContext) -> Agent | None:
        """The agent of a run, whose tools are listed again where this worker has not opened it; None: it is not served.

        Where they cannot be listed now, the run has none of them until they can: each call is told that its tool is gone.
        """
        if context.version is not None:
            agent = await self.versions.find(context)
        else:
            agent = self.registry.agents.get(context.agent)
        if agent is not None and context.input is not None and context.input.carried.model_only:
            return agent.model_only()
        has_own_output = context.input is not None and context.input.carried.output_schema is not None
        if agent is None or not (callable(agent.tools) or has_own_output):
            return agent
        key = (context.trace, context.agent)
        if (agent_of_run := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return agent_of_run
        if context.input is None:
            return agent.with_tools(())  # when the run opened, the agent had a list
        if time.monotonic() - self._failed.get(key, -math.inf) < SECONDS_BETWEEN_TRIES:
            return agent.with_tools(())
        try:
            built = await self.opened(agent, context.input)
        except InvalidRunInputError as error:
            logger.warning("A run goes on without its tools. %s", error.message)
            self._failed[key] = time.monotonic()
            while len(self._failed) > MOST_KEPT:
                self._failed.popitem(last=False)
            return agent.with_tools(())
        self.keep(context.trace, built)
        return built

    def _check_reachable(self, agent: Agent) -> None:
        """Check that a worker can carry out the calls of sub-agents, and reaches the models that repair arguments.

        Raises:
            DeclarationError: a sub-agent or an endpoint stands in no loaded module.
        """
        for tool in agent.listed_tools:
            if not isinstance(tool, AgentTool) or tool.task_queue is not None:
                continue
            if tool.agent.name not in self.registry.agents:
                raise DeclarationError(
                    f"it returned the agent {tool.agent.name!r} as a tool, which no loaded module has."
                )
        for endpoint in agent.endpoints():
            if endpoint.name not in self.endpoints:
                raise DeclarationError(
                    f"it returned a tool with a model at {endpoint.name!r}, which no loaded module has."
                )


def _as_list(returned: Any) -> list[Any]:
    if not isinstance(returned, list | tuple):
        raise DeclarationError(f"it returned a value of type {type_name(returned)}; return a list of tools.")
    return list(returned)
