"""The options of tools that say how a call is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from mulligan.features.tool_option import ToolOption
from mulligan.schema.plain_function import takes

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


MOST_ATTEMPTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class UndoOption(ToolOption):
    """The function that takes a call's effect back, and how often it may be started (docs/undo.md)."""

    undo: Callable[..., Any] | None = None
    undo_attempts: int = 1

    def faults(self, tool: Tool) -> dict[str, bool]:
        """Check that the function can be called, and the number."""
        attempts = self.undo_attempts
        return {
            f"undo must be a function of (arguments, result, ctx), but is {self.undo!r}": (
                self.undo is not None and not takes(self.undo, 3)
            ),
            "undo_attempts is an option of tools with undo: add undo=…, or leave it out": (
                attempts != 1 and self.undo is None
            ),
            f"undo_attempts must be a whole number from 1 to {MOST_ATTEMPTS:,}, but is {attempts!r}": (
                not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= MOST_ATTEMPTS
            ),
        }

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """How often a call's undo may be started; nothing where it cannot be undone."""
        return None if self.undo is None else self.undo_attempts
