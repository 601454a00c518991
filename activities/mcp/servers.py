"""The MCP servers of a worker: their sessions, what they offer to a run, and each of their tools as a `Tool`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from mulligan.activities.mcp.result import text_of
from mulligan.activities.mcp.tool_schema import provider_schema
from mulligan.agent import Agent
from mulligan.durations import seconds
from mulligan.mcp import SEPARATOR, McpError, McpServer, McpUnavailable, matches_any, qualified_name
from mulligan.schema.json_schema import NotOfSchema, schema_faults, schema_validator
from mulligan.tool import Tool, ToolContext, ToolError
from mulligan.wire.agent_facts import ToolDefinition

if TYPE_CHECKING:
    from mulligan.activities.mcp.session import McpSession

logger = logging.getLogger("mulligan.mcp")

MOST_TOOLS = 128
"""What OpenAI takes in a request, with an agent's own: one more would fail every request of the run."""
MOST_BYTES = 700_000
"""Of what a model is told of them: about half of what a run can carry (open_run.DEFINITION_BYTES)."""
MESSAGE_SHOWN = 200
LISTED_WITHIN = 50.0
"""Seconds: Temporal gives a run a minute to open, instructions beside this."""


@dataclass
class OfferedTools:
    """What a run is offered by its agent's MCP servers: pinned when it opens."""

    definitions: list[ToolDefinition] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    """The same, as the worker calls them."""
    originals: dict[str, str] = field(default_factory=dict)
    """By the name that the model uses: the server's own, where the one does not end with the other."""
    notes: list[str] = field(default_factory=list)
    """What the model is told of servers that are not there: a sentence each."""


class McpServers:
    """One session for each server, begun when it is first used; all of them end with the worker."""

    def __init__(self) -> None:
        self._sessions: dict[int, McpSession] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """End every session with the block."""
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            await asyncio.gather(*(session.close() for session in self._sessions.values()), return_exceptions=True)

    async def offer_tools(self, agent: Agent) -> OfferedTools:
        """List the tools of an agent's servers, side by side. One that does not answer is told to the model."""
        offered = OfferedTools()
        listings = await asyncio.gather(*(self._listed(server) for server in agent.mcp))
        room, size = MOST_TOOLS - len(agent.tools), 0
        for server, listing in zip(agent.mcp, listings, strict=True):
            if listing is None:
                offered.notes.append(
                    f"The tools of the MCP server `{server.name}` are not there, as it did not answer when this run began: "
                    "do without them, and say so where it matters."
                )
                continue
            left_out = 0
            for original, tool in listing:
                length = len(tool.model_dump_json().encode())
                if any(tool.name == other.name for other in offered.definitions):
                    continue
                if len(offered.definitions) >= room or size + length > MOST_BYTES:
                    left_out += 1
                    continue
                size += length
                if not tool.name.endswith(SEPARATOR + original):
                    offered.originals[tool.name] = original
                offered.definitions.append(tool)
                offered.tools.append(self.tool(server, tool.name, original, tool))
            if left_out:
                logger.warning(
                    "Agent %r: %d tools of MCP server %r are left out: more than a model takes. Choose by `include`.",
                    agent.name, left_out, server.name,
                )  # fmt: skip
        return offered

    def tool(self, server: McpServer, name: str, original: str, shown: ToolDefinition | None = None) -> Tool:
        """A server's tool, by the name that the model uses and the server's own; `shown`: as it is pinned for the run.

        Without it any object is taken: the arguments were looked at before.
        """

        async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
            return await self._called(server, original, context, arguments)

        return Tool(
            function=call,
            name=name,
            description=shown.description if shown else "",
            timeout=timedelta(seconds=_whole(server)),
            attempts=server.attempts,
            retry_on=(McpUnavailable,),
            fix=None,
            handle_errors=server.handle_errors,
            needs_approval=server.needs_approval_for(original),
            approval_timeout=_delta(server.approval_timeout),
            asks_person=False,
            task_queue=None,
            queue_timeout=timedelta(hours=1),
            max_result_chars=server.max_result_chars,
            local=False,
            arguments=_accepts(json.dumps(shown.parameters)) if shown else ANY_OBJECT,
            mcp_server=server.name,
        )

    async def _listed(self, server: McpServer) -> list[tuple[str, ToolDefinition]] | None:
        """The tools that a model may be shown, with the server's own names; None where the server is not there."""
        try:
            async with asyncio.timeout(LISTED_WITHIN):
                tools = await self._session(server).tools()
        except (McpError, TimeoutError) as error:
            logger.info("A run opens without the tools of an MCP server. %s", error)
            return None
        if unknown := [name for name in server.include or () if not any(matches_any(t.name, [name]) for t in tools)]:
            logger.warning("MCP server %r has no tool %s, which `include` names.", server.name, ", ".join(unknown))
        shown = []
        for tool in tools:
            if not server.offers(tool.name):
                continue
            try:
                schema = provider_schema(tool.input_schema)
                schema_validator(schema)
            except (TypeError, RecursionError) as error:
                logger.warning("MCP server %r: the input of %r %s It is left out.", server.name, tool.name, error)
                continue
            name = qualified_name(server.name, tool.name)
            shown.append(
                (
                    tool.name,
                    ToolDefinition(name=name, description=tool.description or tool.title or "", parameters=schema),
                )
            )
        return shown

    async def _called(self, server: McpServer, original: str, context: ToolContext, arguments: dict[str, Any]) -> str:
        """Call it on the worker's own event loop, where the sessions are: tools run on another one."""
        assert self._loop is not None

        async def beat(progress: float, total: float | None, message: str | None) -> None:
            context.heartbeat({"progress": progress, "total": total, "message": (message or "")[:MESSAGE_SHOWN]})

        calling = self._session(server).call(original, arguments, beat)
        result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling, self._loop))
        text = text_of(result)
        if result.is_error:
            raise ToolError(text)
        return text

    def _session(self, server: McpServer) -> McpSession:
        # Loaded where there is a server at all.
        from mulligan.activities.mcp.session import McpSession

        return self._sessions.setdefault(id(server), McpSession(server))


def _delta(duration: float | timedelta | None) -> timedelta | None:
    return None if duration is None else timedelta(seconds=seconds(duration))


def _whole(server: McpServer) -> float:
    """Seconds for a call, and for the server's start before it, where it must be."""
    return seconds(server.timeout) + seconds(server.start_timeout)


@dataclass(frozen=True)
class _Object:
    """Arguments by a JSON schema: what is valid goes to the server as the model wrote it."""

    schema: dict[str, Any]
    validator: Any = None

    @property
    def required(self) -> list[str]:
        """Names of the fields that must be there."""
        return list(self.schema.get("required", []))

    def validate(self, value: JsonValue) -> dict[str, Any]:
        """The arguments.

        Raises:
            NotOfSchema: they do not fit.
        """
        if self.validator is not None and (faults := schema_faults(self.validator, value)):
            raise NotOfSchema(faults)
        if not isinstance(value, dict):
            raise NotOfSchema([("", "should be an object")])
        return value

    def to_json(self, validated: dict[str, Any]) -> JsonValue:
        """The same."""
        return cast(JsonValue, validated)

    def bind(self, values: dict[str, Any], context: ToolContext) -> tuple[list[Any], dict[str, Any]]:
        """The context, and all arguments as one."""
        return [context, values], {}


ANY_OBJECT = _Object({"type": "object", "properties": {}})


@lru_cache(maxsize=1_000)
def _accepts(schema: str) -> _Object:
    read = json.loads(schema)
    return _Object(read, schema_validator(read))
