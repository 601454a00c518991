"""`resources()` of a loaded module: what it opens once for a worker (pools, clients), and tools find in their context."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.errors import DeclarationError
from mulligan.schema.error_text import error_text, type_name

logger = logging.getLogger("mulligan.resources")

OPEN_LIMIT, CLOSE_LIMIT = 60.0, 10.0
"""Seconds that a module's resources may take to open, and to close."""


class Resources:
    """The opened resources of each module, for the agents and tools that the module defines."""

    def __init__(
        self,
        declared: Mapping[str, Callable[[], Any]],
        modules_of_agents: Mapping[str, str],
        modules_of_tools: Mapping[str, str],
    ) -> None:
        """`declared`: each module's `resources()`. The other two give the module of an agent, or of a tool, by its name."""
        self._declared = declared
        self._of_agents, self._of_tools = modules_of_agents, modules_of_tools
        self._opened: dict[str, Any] = {}

    @asynccontextmanager
    async def opened(self, runtime: ToolRuntime) -> AsyncIterator[None]:
        """Open all resources on the event loop of the tools: a connection pool belongs to the loop that it was created on.

        Raises:
            DeclarationError: a module's resources could not be opened.
        """
        opened: list[tuple[str, Any]] = []
        try:
            for module, make in self._declared.items():
                try:
                    self._opened[module], close = await runtime.enter(make, limit=OPEN_LIMIT)
                except Exception as error:
                    reason = " ".join(error_text(error).split())
                    raise DeclarationError(f"resources() of {module} failed: {type_name(error)}: {reason}") from error
                opened.append((module, close))
            yield
        finally:
            for module, close in reversed(opened):
                try:
                    await close(CLOSE_LIMIT)
                except Exception as error:  # noqa: BLE001 - the others must be closed too
                    logger.warning(
                        "resources() of %s did not close: %s: %s", module, type_name(error), error_text(error)
                    )

    def of_agent(self, name: str, tool: str = "") -> Any:
        """The resources of the module that defines an agent, or, of an agent that is a file, the tool that is called; None
        if the module has none.
        """
        return self._opened.get(self._of_agents[name]) if name in self._of_agents else self.of_tool(tool)

    def of_tool(self, name: str) -> Any:
        """The resources of the module that defines a tool, for a tool that is served without its agent."""
        return self._opened.get(self._of_tools.get(name, ""))
