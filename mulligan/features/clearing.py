"""`ClearToolResults`: old results of tools are left out of what a long conversation sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.features.agent_feature import AgentFeature
from mulligan.mcp import server_name_of

if TYPE_CHECKING:
    from mulligan.agent import Agent

LEAST_AT = 1_000
"""Tokens. Below it, the newest steps would be most of the conversation."""
MOST_EXCEPTIONS = 100
"""Each request of the run has their names."""


@dataclass(frozen=True, kw_only=True)
class ClearToolResults(AgentFeature, in_files=True):
    """Above a size, requests have one line in place of each result of an older step (docs/clearing.md).

    Messages, steps and events keep the results.

    Args:
        at: Tokens (1,000 or more) of conversation from which on that happens.
        keep_steps: How many of the newest steps keep their results; 1 or more.
        except_tools: The names of tools whose results always stay.
    """

    at: int = 60_000
    keep_steps: int = 3
    except_tools: Sequence[str] = ()

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check the numbers, and that the agent has the tools. `agent`: whose feature it is."""
        names, is_list = self.except_tools, not isinstance(self.except_tools, str)
        are_names = is_list and all(isinstance(name, str) for name in names)
        unknown = [] if not are_names or callable(agent.tools) else [name for name in names if not _has(agent, name)]
        return {
            f"ClearToolResults: at is {self.at!r}; it must be a whole number of tokens, {LEAST_AT:,} or more": (
                type(self.at) is not int or self.at < LEAST_AT
            ),
            f"ClearToolResults: keep_steps is {self.keep_steps!r}; it must be a whole number, 1 or more": (
                type(self.keep_steps) is not int or self.keep_steps < 1
            ),
            f"ClearToolResults: except_tools must be a list of at most {MOST_EXCEPTIONS} names of tools, but is {names!r}": (
                not are_names or len(names) > MOST_EXCEPTIONS
            ),
            f"ClearToolResults: except_tools names {', '.join(map(repr, unknown))}, which is no tool of the agent": (
                bool(unknown)
            ),
        }

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """The options. `models`: the run's."""
        return {"at": self.at, "keep_steps": self.keep_steps, "except_tools": list(self.except_tools)}


def _has(agent: Agent, name: str) -> bool:
    return agent.tool(name) is not None or agent.mcp_server(server_name_of(name)) is not None
