"""A call of a server's tool: sent until the server has a result, or questions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.activities.mcp.elicitation import MAX_ROUNDS, questions_of, responses_of, url_questions_of
from mulligan.activities.mcp.tool_list import list_tools
from mulligan.mcp import McpError

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import CallToolResult

    from mulligan.wire.questions import Questions, Replies

FIRST_POLL, LONGEST_POLL = 0.05, 5.0
"""Seconds until a server that is not done, and asks nothing, is asked again; they double each time."""


@dataclass(eq=False)
class ToolRequest:
    """A request to call a tool.

    Args:
        tool: The server's own name for it.
        arguments: Its arguments.
        progress: Told how far the call is.
        replies: What people replied to the questions that the server asked before.
        may_ask: Whether the server may ask people.
    """

    tool: str
    arguments: dict[str, Any]
    progress: ProgressFnT
    replies: Replies | None
    may_ask: bool
    has_begun: bool = field(default=False, init=False)
    """The server has sent something of the call, without a result."""

    async def run(self, client: Client) -> CallToolResult | Questions:
        """Call the tool until the server has a result, or questions.

        Raises:
            McpError: the server asks for what it is not offered, or does not stop asking.
            MCPError: the server refused the call.
        """
        from mcp.shared.exceptions import MCPError
        from mcp.types import CallToolResult
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        responses, state = None, None
        if self.replies is not None and is_modern:
            responses, state = responses_of(self.replies), self.replies.state
        elif self.replies is not None and any(reply.action != "accept" for reply in self.replies.replies.values()):
            raise McpError("it needs a person to open a page first, and nobody agreed to that")
        pause = FIRST_POLL
        while True:
            try:
                result = await self._send(client, responses, state)
            except MCPError as error:
                questions = url_questions_of(error)
            else:
                if isinstance(result, CallToolResult):
                    return result
                questions = questions_of(result)
            if questions.questions:
                if not self.may_ask:
                    raise McpError("it asked a person, which is not offered to it")
                if self.replies is not None and self.replies.round >= MAX_ROUNDS:
                    raise McpError(f"it asked people {MAX_ROUNDS} times in one call, and asks again")
                return questions
            self.has_begun = True
            # The server is not done, and wants to be asked again with its state.
            await asyncio.sleep(pause)
            pause = min(LONGEST_POLL, pause * 2)
            responses, state = None, questions.state

    async def _send(self, client: Client, responses: dict[str, Any] | None, state: str | None) -> Any:
        from mcp.shared.exceptions import MCPError
        from mcp.types import HEADER_MISMATCH

        for may_list in (True, False):
            try:
                return await client.session.call_tool(
                    self.tool,
                    self.arguments,
                    progress_callback=self._report,
                    input_responses=responses,
                    request_state=state,
                    allow_input_required=True,
                )
            except MCPError as error:
                if error.code != HEADER_MISMATCH or not may_list:
                    raise
                # The tool's schema has changed: the headers of its calls are derived from it.
                await list_tools(client)
        raise AssertionError("a call is sent twice")

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        self.has_begun = True
        await self.progress(progress, total, message)
