"""An agent as another agent's tool: each call of it is a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from mulligan.errors import DeclarationError
from mulligan.tool import Tool, ToolError, tool

if TYPE_CHECKING:
    from mulligan.agent import Agent

__all__ = ["AgentTool", "agent_tool", "reachable"]

NO_LIMIT = timedelta(0)


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentTool(Tool):
    """A tool whose calls are runs of `agent`. `timeout` is that of a whole run; `NO_LIMIT`: none."""

    agent: Agent
    share_budget: bool

    @property
    def source(self) -> str:
        """The file that declares the agent."""
        return self.agent.source


def agent_tool(
    agent: Agent, *, name: str | None, description: str, share_budget: bool, timeout: float | timedelta | None,
    **options: Any,
) -> AgentTool:  # fmt: skip
    """What `Agent.as_tool` returns; its options are told there. `options` are those that every tool has.

    Raises:
        DeclarationError: an option makes no sense.
    """

    def ask(
        prompt: Annotated[
            str,
            Field(description="What it is to do, with all that it must know: it sees nothing of this conversation."),
        ],
    ) -> str:
        del prompt
        # Only a run that was opened before this name was an agent's calls it so.
        raise ToolError(f"`{agent.name}` is an agent now, and this run does not know that; do without it.")

    the_name = agent.name if name is None else name
    where = f"{agent.source}: tool {the_name!r}"
    limit = timeout if isinstance(timeout, timedelta | None) else timedelta(seconds=timeout)
    if limit is not None and limit <= NO_LIMIT:
        raise DeclarationError(f"{where}: timeout must be more than 0 seconds, or None.")
    if not description.strip():
        raise DeclarationError(f"{where}: description is empty; say what the agent is good for.")
    try:
        made = tool(name=the_name, description=description, **options)(ask)
    except DeclarationError as error:
        raise DeclarationError(str(error).replace(made_in(ask), agent.source)) from None
    same = {field.name: getattr(made, field.name) for field in fields(Tool)}
    return AgentTool(**{**same, "timeout": limit or NO_LIMIT}, agent=agent, share_budget=share_budget)


def made_in(function: Callable[..., Any]) -> str:
    """The file of a function."""
    return function.__code__.co_filename


def reachable(agents: Iterable[Agent], tools: Iterable[Tool] = ()) -> list[Agent]:
    """The agents, and those that they can hand work to, and so on; each once. A circle of agents is legal."""
    found: dict[int, Agent] = {}
    left = [*agents, *(each.agent for each in tools if isinstance(each, AgentTool))]
    while left:
        agent = left.pop(0)
        if id(agent) not in found:
            found[id(agent)] = agent
            left += [each.agent for each in agent.tools if isinstance(each, AgentTool)]
    return list(found.values())
