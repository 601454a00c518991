"""`CodeMode`: the model writes scripts, which call the agent's tools as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.durations import as_timedelta, seconds
from mulligan.extras import is_installed
from mulligan.features.agent_feature import AgentFeature
from mulligan.schema.python_stubs import FunctionSchema, identifier, stubs_of
from mulligan.tool import Tool, ToolError, tool

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.mcp import McpServer
    from mulligan.wire.agent_facts import HiddenTool

RUN_CODE = "run_code"
MOST_CALLS, LONGEST_TIMEOUT = 1_000, 300.0
"""The most `max_calls`: the events of a script stay far below what a history can have. Seconds of the longest `timeout`."""
DESCRIPTION = """\
Run a Python script that calls the functions below, and return what it prints, then the value of its last expression. Write \
one script for all that can be done without reading results in between; print what you need to know.
Each call must be awaited, at the top level or in an `async def`; `await asyncio.gather(a(...), b(...))` runs calls side \
by side. A failed call raises `ToolError`, whose `str()` says why. Classes cannot be derived; of the standard library there \
are asyncio, collections, datetime, functools, itertools, json, math, random, re and some more. There are no files, no \
network and no other input; the clock stands still.

```python
{stubs}```"""


@tool(name=RUN_CODE, description="Run a Python script that calls the agent's tools as functions.")
async def run_code(code: str) -> str:
    """Run a script. The workflow does that; this function is called only by a run that knows nothing of scripts."""
    del code
    raise ToolError("This run has no scripts; call the tools.")


@dataclass(frozen=True, kw_only=True)
class CodeMode(AgentFeature, in_files=True):
    """The model gets one tool, `run_code`, whose scripts call the agent's tools as functions (docs/code-mode.md).

    Args:
        tools: The tools that scripts call, or their names (`server__tool` of an MCP server); None: all of the agent's. The
            model can call them in scripts only.
        max_calls: How many calls a script may make (1 to 1,000).
        timeout: Seconds, or a timedelta, of the interpreter's own time for a script; waiting for calls does not count.
    """

    tools: Sequence[Tool | str] | None = None
    max_calls: int = 200
    timeout: float | timedelta = 30

    @property
    def names(self) -> frozenset[str] | None:
        """The names of the tools that scripts call; None: all."""
        if self.tools is None:
            return None
        return frozenset(each.name if isinstance(each, Tool) else each for each in self.tools)

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check the limits, that each tool of `agent` exists, and that each has a name of its own in Python."""
        tools = self.tools
        are_tools = tools is None or (
            isinstance(tools, Sequence) and not isinstance(tools, str) and all(isinstance(t, Tool | str) for t in tools)
        )
        names = [each.name for each in agent.listed_tools]
        unknown = sorted(
            name
            for name in ((self.names or ()) if are_tools else ())
            if name not in names and "__" not in name and not callable(agent.tools)
        )
        hidden = [each for each in agent.listed_tools if self.hides(each.name)] if are_tools else []
        servers = [each for each in agent.mcp if self._hides_some(each)] if are_tools else []
        unseen = [each.name for each in hidden if each.traits.is_unseen]
        unseen += [each.name for each in servers if each.traits.is_unseen]
        functions = [identifier(each.name) for each in hidden]
        return {
            "CodeMode needs the extra 'code' of Mulligan, which is not installed; install it: uv add 'mulligan[code]' (or: "
            "pip install 'mulligan[code]')": not is_installed("code"),
            f"CodeMode: tools must be a list of tools or of their names, or None, but is {self.tools!r}": not are_tools,
            f"CodeMode: tools has {', '.join(map(repr, unknown))}, which the agent does not have": bool(unknown),
            f"CodeMode: max_calls is {self.max_calls!r}; it must be a whole number, 1 to {MOST_CALLS:,}": (
                type(self.max_calls) is not int or not 1 <= self.max_calls <= MOST_CALLS
            ),
            f"CodeMode: timeout is {self.timeout!r}; it must be more than 0 seconds, and at most {LONGEST_TIMEOUT:g}": (
                not _is_time(self.timeout)
            ),
            f"CodeMode: {', '.join(map(repr, unseen))} cannot be found on demand: scripts call the tools that are described "
            "to the model; leave it out of tools, or let the model see it": bool(unseen),
            "CodeMode: two tools would have one name as Python functions; rename one": len(set(functions))
            < len(functions),
        }

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """The limits. `models`: the run's."""
        return {"max_calls": self.max_calls, "timeout": seconds(self.timeout)}

    def added_tools(self, agent: Agent) -> Sequence[Tool]:
        """The tool `run_code`. `agent`: whose feature it is."""
        return (replace(run_code, calls_others=self),)

    def hides(self, name: str) -> bool:
        """Whether a tool is called in scripts only. `name`: the tool's."""
        return self.names is None or name in self.names

    def _hides_some(self, server: McpServer) -> bool:
        return self.names is None or any(name.startswith(f"{server.name}__") for name in self.names)

    def describe(self, functions: Sequence[HiddenTool]) -> str:
        """The description of `run_code`, with the `functions` that scripts can call."""
        schemas = [FunctionSchema(each.name, each.description, each.parameters, each.result) for each in functions]
        return DESCRIPTION.format(stubs=stubs_of(schemas))


def _is_time(timeout: object) -> bool:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | timedelta):
        return False
    try:
        return timedelta(0) < as_timedelta(timeout) <= timedelta(seconds=LONGEST_TIMEOUT)
    except (OverflowError, ValueError):
        return False
