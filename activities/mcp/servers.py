"""The MCP servers of a worker: their sessions, the tools that they offer to a run, and each of these as a `Tool`."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from mulligan.activities.mcp.call_failure import LATER, message
from mulligan.activities.mcp.call_result import result_parts, result_text
from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.agent import Agent
from mulligan.content import Part
from mulligan.durations import seconds
from mulligan.mcp import SEPARATOR, McpError, McpServer, McpUnavailable, matches_any, qualified_name
from mulligan.mcp_auth import LoginNeeded
from mulligan.schema.json_schema import schema_validator
from mulligan.schema.schema_arguments import ANY_OBJECT, SchemaArguments, validator_of
from mulligan.schema.schema_cost import check_size, is_cheap
from mulligan.schema.tool_schema import checkable_schema, provider_schema
from mulligan.tool import Tool, ToolContext, ToolError, feature_options
from mulligan.wire.agent_facts import ToolDefinition
from mulligan.wire.questions import Questions

if TYPE_CHECKING:
    from mulligan.activities.mcp.session import McpSession

logger = logging.getLogger("mulligan.mcp")


class NeedsPersonError(Exception):
    """A call has no result yet: its server asks a person, and has to be called again with the replies."""

    def __init__(self, questions: Questions) -> None:
        super().__init__("the call asks a person")
        self.questions = questions


MAX_TOOLS = 128
"""OpenAI's limit for a request, with the agent's own tools: one more would fail every request of the run."""
MAX_DEFINITION_BYTES = 700_000
"""Bytes of the tools' definitions: about half of what a run can carry (open_run.DEFINITION_BYTES)."""
FOUND_ROOM = 20
"""Of these, so many are for tools that the model finds."""
MAX_ON_DEMAND, STORED_DEFINITION_BYTES = 5_000, 15_000_000
"""Tools that the model finds on demand, and bytes of their definitions where there is a content storage."""
MAX_PROGRESS_CHARS = 200
"""Characters of a progress message that a heartbeat carries."""
LIST_TIMEOUT = 50.0
"""Seconds: the activity that opens a run has a minute, for instructions and servers side by side."""
LONGEST_QUESTION = 86_400.0
"""Seconds for which a call is held open while a person is asked. It takes a place of the worker, and the worker's next
deploy ends it anyway. A server of the protocol's newest version waits without that, and without this limit."""
CHECK_SECONDS = 5.0
"""Limit of one validation. An ordinary one takes milliseconds."""
_SENTENCE_END = re.compile(r"[:.,](?:\s|$)")
_FAULTS_BY = "mulligan.activities.mcp.faults_by:faults_by"


@dataclass
class OfferedTools:
    """The tools that the MCP servers of an agent offer to a run, as they are when the run opens."""

    definitions: list[ToolDefinition] = field(default_factory=list)
    """What providers are sent of the tools."""
    tools: list[Tool] = field(default_factory=list)
    """The same tools, as the worker calls them."""
    originals: dict[str, str] = field(default_factory=dict)
    """The server's own name of a tool, by the name that the model uses, where the latter does not end with the former."""
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The schema by which a tool's arguments are validated, by its name, where the one in its definition is simpler."""
    notes: list[str] = field(default_factory=list)
    """For the model: a sentence about each server that is unavailable."""


@dataclass
class Listing:
    """The tools of one server that are offered: its own name of each, its definition, and the schema that validates its
    arguments, which is None where the definition's does.
    """

    tools: list[tuple[str, ToolDefinition, dict[str, Any] | None]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, server: McpServer, tool: str, why: str) -> None:
        """Note, and log, that a tool is left out."""
        if server.offers(tool):
            self.left_out.append(f"MCP server {server.name!r}: the input of {tool!r} {why} It is left out.")
            logger.warning("%s", self.left_out[-1])


class McpServers:
    """One session for each server. It opens when the server is first used, and closes with the worker."""

    def __init__(self, children: ChildProcesses | None = None) -> None:
        """`children`: where values are checked by schemas that may take long; own ones where None."""
        self._children = children or ChildProcesses()
        self._sessions: dict[int, McpSession] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Close every session at the end of the block."""
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            await asyncio.gather(*(session.close() for session in self._sessions.values()), return_exceptions=True)
            await self._children.close()

    async def faults_by(self, schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
        """Check a value by a server's schema; return each fault as (path, what is wrong), nothing where it is valid."""
        return await isolated_faults(self._children, schema, value)

    async def offer_tools(self, agent: Agent, *, stored: bool = False) -> OfferedTools:
        """List the tools of all of an agent's servers at once. For those that do not answer, the model gets a note.

        `stored`: whether definitions of tools on demand may be in the content storage, so that there may be more of them.
        """
        offered = OfferedTools()
        listings = await asyncio.gather(*(self.list_tools(server) for server in agent.mcp))
        names: set[str] = set()
        most_bytes = STORED_DEFINITION_BYTES if stored else MAX_DEFINITION_BYTES
        seen = sum(not tool.traits.is_unseen for tool in agent.listed_tools) + (FOUND_ROOM if agent.finds_tools else 0)
        room = {False: [MAX_TOOLS - seen, MAX_DEFINITION_BYTES], True: [MAX_ON_DEMAND, most_bytes]}
        for server, listing in zip(agent.mcp, listings, strict=True):
            if isinstance(listing, Exception):
                offered.notes.append(
                    f"The tools of the MCP server `{server.name}` are not there, as {_why(listing)} when this run began: "
                    "do without them, and say so where it matters."
                )
                continue
            left_out, left = 0, room[server.traits.is_unseen]
            for original, tool, checked_by in listing.tools:
                length = len(tool.model_dump_json().encode()) + (len(json.dumps(checked_by)) if checked_by else 0)
                if tool.name in names:
                    continue
                if left[0] < 1 or length > left[1]:
                    left_out += 1
                    continue
                names.add(tool.name)
                left[0] -= 1
                left[1] -= length
                if not tool.name.endswith(SEPARATOR + original):
                    offered.originals[tool.name] = original
                if checked_by is not None:
                    offered.schemas[tool.name] = checked_by
                offered.definitions.append(tool)
                offered.tools.append(self.tool(server, tool.name, original, tool, checked_by))
            if left_out:
                logger.warning(
                    "Agent %r: %d tools of MCP server %r are left out: more than a model accepts. Choose by `include`.",
                    agent.name, left_out, server.name,
                )  # fmt: skip
        return offered

    def tool(
        self,
        server: McpServer,
        name: str,
        original: str,
        definition: ToolDefinition | None = None,
        checked_by: dict[str, Any] | None = None,
    ) -> Tool:
        """Return a server's tool.

        Args:
            server: The server.
            name: The name that the model uses.
            original: The server's own name for it.
            definition: Its definition in the run. None: any object is valid, where the arguments were validated before.
            checked_by: The schema by which its arguments are validated; the definition's where None.
        """

        async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
            return await self._call(server, original, context, arguments)

        return Tool(
            function=call,
            name=name,
            description=definition.description if definition else "",
            timeout=timedelta(seconds=_longest_call(server)),
            attempts=server.attempts,
            retry_on=(McpUnavailable,),
            fix=None,
            handle_errors=server.handle_errors,
            task_queue=None,
            queue_timeout=timedelta(hours=1),
            max_result_chars=server.max_result_chars,
            local=False,
            arguments=self._arguments(definition, checked_by) if definition else ANY_OBJECT,
            trust=server.trust,
            **feature_options(server.options_of(original)),
            mcp_server=server.name,
            asks=server.questions,
        )

    def _arguments(self, definition: ToolDefinition, checked_by: dict[str, Any] | None) -> SchemaArguments:
        schema = definition.parameters
        validator = validator_of(json.dumps(schema if checked_by is None else checked_by))
        return SchemaArguments(schema, validator, self.check_isolated)

    def check_isolated(self, schema: dict[str, Any], value: JsonValue) -> list[tuple[str, str]]:
        """Check a value from another thread: child processes belong to the worker's event loop."""
        assert self._loop is not None
        check = isolated_faults(self._children, schema, value)
        return asyncio.run_coroutine_threadsafe(check, self._loop).result()

    async def list_tools(self, server: McpServer) -> Listing | McpError | TimeoutError:
        """The tools that a server offers; an error if it is unavailable."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                listed = await self._session(server).tools()
        except (McpError, TimeoutError) as error:
            logger.info("A run opens without the tools of an MCP server. %s", error)
            return error
        if unknown := [
            name for name in server.include or () if not any(matches_any(t.name, [name]) for t in listed.tools)
        ]:
            logger.warning("MCP server %r has no tool %s, which `include` names.", server.name, ", ".join(unknown))
        listing = Listing()
        for name, why in listed.left_out.items():
            listing.leave_out(server, name, f"cannot be read: {why}.")
        for tool in listed.tools:
            if not server.offers(tool.name):
                continue
            try:
                schema, checked_by = _schemas(tool.input_schema)
            except (TypeError, RecursionError) as error:
                listing.leave_out(server, tool.name, str(error))
                continue
            name = qualified_name(server.name, tool.name)
            definition = ToolDefinition(name=name, description=tool.description or tool.title or "", parameters=schema)
            listing.tools.append((tool.name, definition, checked_by))
        return listing

    async def _call(
        self, server: McpServer, original: str, context: ToolContext, arguments: dict[str, Any]
    ) -> str | list[Part]:
        """Call a tool on the worker's event loop, to which the sessions belong: tools run on another loop."""
        assert self._loop is not None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.heartbeat({"progress": progress, "total": total, "message": (message or "")[:MAX_PROGRESS_CHARS]})

        call = self._session(server).call(
            original, arguments, report, ask=context._ask if server.questions else None, replies=context._replies
        )
        result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
        if isinstance(result, Questions):
            raise NeedsPersonError(result)
        if result.is_error:
            raise ToolError(result_text(result))
        return result_parts(result) or result_text(result)

    def _session(self, server: McpServer) -> McpSession:
        # Imported only by workers that use a server: it needs the extra `mcp`, and takes time.
        from mulligan.activities.mcp.session import McpSession

        return self._sessions.setdefault(id(server), McpSession(server, partial(isolated_faults, self._children)))


def unavailable_text(server: McpServer, error: McpError | TimeoutError) -> str:
    """Why a server's tools are not there, for people."""
    if isinstance(error, TimeoutError):
        return message(server, f"did not list its tools within {LIST_TIMEOUT:g} s", "")
    return str(error).removesuffix(LATER)


def _why(error: McpError | TimeoutError) -> str:
    """Why a server's tools are not there, for the model: without what only the worker's operators may know."""
    if isinstance(error.__cause__, LoginNeeded):
        return f"the worker may not use it ({error.__cause__})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    _, _, says = str(error).partition("` ")
    return f"it {_SENTENCE_END.split(says)[0]}"


def _delta(duration: float | timedelta | None) -> timedelta | None:
    return None if duration is None else timedelta(seconds=seconds(duration))


def _longest_call(server: McpServer) -> float:
    """Seconds for a call, for the start of the server before it, and for the people that an older server asks meanwhile.

    The session itself limits the server's part.
    """
    asking = 0.0
    if server.questions:
        timeout = server.person_timeout
        asking = LONGEST_QUESTION if timeout is None else min(LONGEST_QUESTION, timeout)
    return seconds(server.timeout) + seconds(server.start_timeout) + asking


def _schemas(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The schema of a tool's arguments as the model gets it, and the schema that validates them, if another.

    Raises:
        TypeError, RecursionError: it cannot be used; the message continues a sentence that names the tool.
    """
    check_size(schema)
    for_model, checked_by = provider_schema(schema), checkable_schema(schema)
    for each in (for_model, checked_by):
        check_size(each)
        schema_validator(each)
    return for_model, None if {"properties": {}, **checked_by} == for_model else checked_by


async def isolated_faults(children: ChildProcesses, schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """The faults of a value, as (path, what is wrong), found in a process of its own unless that takes little time anyway.

    A value that cannot be checked within the limits is at fault itself.
    """
    try:
        if is_cheap(schema, value):
            from mulligan.activities.mcp.faults_by import faults_by

            return faults_by(schema, value)
        text = await children.run(_FAULTS_BY, (schema, value), limit=CHECK_SECONDS)
        return [(str(path), str(says)) for path, says in json.loads(text)]
    except TookTooLong:
        return [("", f"could not be checked within {CHECK_SECONDS:g} s: give a shorter or simpler value")]
    except (ProcessDied, RecursionError, ValueError) as error:
        return [("", f"could not be checked: {error}. Give a shorter or simpler value")]
