"""`resources()`: what a loaded module opens once for a worker (connection pools, clients) and its tools find in `ctx`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.errors import DeclarationError

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
        """Open all, where the tools run: a pool belongs to the event loop on which it was made.

        Raises:
            DeclarationError: one could not be opened.
        """
        left: list[tuple[str, Any]] = []
        try:
            for module, make in self._declared.items():
                try:
                    self._opened[module], leave = await runtime.enter(make, limit=OPEN_LIMIT)
                except Exception as error:
                    said = " ".join(str(error).split())
                    raise DeclarationError(f"resources() of {module} failed: {type(error).__name__}: {said}") from error
                left.append((module, leave))
            yield
        finally:
            for module, leave in reversed(left):
                try:
                    await leave(CLOSE_LIMIT)
                except Exception as error:  # noqa: BLE001 - the others are to be closed as well
                    logger.warning("resources() of %s did not close: %s: %s", module, type(error).__name__, error)

    def of_agent(self, name: str) -> Any:
        """What the module of that agent opened; None where it opened nothing."""
        return self._opened.get(self._of_agents.get(name, ""))

    def of_tool(self, name: str) -> Any:
        """The same for a tool that is served without its agent."""
        return self._opened.get(self._of_tools.get(name, ""))
