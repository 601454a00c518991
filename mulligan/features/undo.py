"""The options of tools that say how a call is undone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from mulligan.features.tool_option import ToolOption

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


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
                self.undo is not None and not _takes(self.undo, 3)
            ),
            "undo_attempts is an option of tools with undo: add undo=…, or leave it out": (
                attempts != 1 and self.undo is None
            ),
            f"undo_attempts must be a whole number, 1 or more, but is {attempts!r}": (
                not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1
            ),
        }

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """How often a call's undo may be started; nothing where it cannot be undone."""
        return None if self.undo is None else self.undo_attempts


def _takes(function: Any, arguments: int) -> bool:
    """Whether it can be called with so many positional arguments. Nothing is known of some functions written in C."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
