"""`ToolSearch`: the model finds tools when it needs them, in place of seeing all of them in each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue

from mulligan.features.agent_feature import AgentFeature
from mulligan.features.tool_option import ToolOption, Traits
from mulligan.schema.arguments_model import arguments_model
from mulligan.tool import FIND_TOOLS, Tool, ToolContext, ToolError

if TYPE_CHECKING:
    from mulligan.agent import Agent


LONGEST_QUERY = 1_000
"""Characters of a query."""
MOST_AT_ONCE = 20
"""Tools that one search returns at most."""


@dataclass(frozen=True, kw_only=True)
class ToolSearch(AgentFeature, in_files=True):
    """How the model finds tools with `on_demand`, by the tool `find_tools` (docs/tool-search.md).

    Agents that have such tools have the feature with its defaults, too.

    Args:
        limit: How many tools one call of `find_tools` returns at most; 1 to 20.
    """

    limit: int = 5

    @classmethod
    def implied_by(cls, agent: Agent) -> ToolSearch | None:
        """The feature of an `agent` that does not name it, if one of its tools asks for it."""
        return ToolSearch() if agent.finds_tools else None

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check the limit. `agent`: whose feature it is."""
        is_wrong = type(self.limit) is not int or not 1 <= self.limit <= MOST_AT_ONCE
        return {f"ToolSearch: limit is {self.limit!r}; it must be a whole number from 1 to {MOST_AT_ONCE}": is_wrong}

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """The limit. `models`: the run's."""
        return {"limit": self.limit}

    def added_tools(self, agent: Agent) -> Sequence[Tool]:
        """The tool `find_tools`, if there are tools to find. `agent`: whose feature it is."""
        if not agent.finds_tools:
            return ()
        servers = ", ".join(f"`{server.name}`" for server in agent.mcp if server.traits.is_unseen)
        of_servers = f" Among them are the tools of {servers}." if servers else ""
        return (
            Tool(
                function=_find,
                arguments=arguments_model(_find, FIND_TOOLS, ToolContext),
                name=FIND_TOOLS,
                description=(
                    "Search for tools that you do not see yet, and need. Returns the best matches, with their parameters; "
                    f"you can call them from your next step on.{of_servers}"
                ),
                timeout=timedelta(seconds=20),
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ToolSearchOption(ToolOption):
    """Whether the model does not see the tool until it has found it."""

    on_demand: bool = False

    @property
    def traits(self) -> Traits:
        """Whether the model has to find it."""
        return Traits(is_unseen=self.on_demand)


def _find(
    query: Annotated[
        str,
        Field(description="What the tool must do, in a few plain words.", min_length=1, max_length=LONGEST_QUERY),
    ],
) -> str:
    del query
    # The workflow calls an activity of its own in place of it.
    raise ToolError("No tools can be searched for here.")
