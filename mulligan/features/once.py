"""The option `once` of tools: which calls are not executed a second time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.features.tool_option import ToolOption
from mulligan.once import Once

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


@dataclass(frozen=True, kw_only=True)
class OnceOption(ToolOption):
    """Which calls that have succeeded exclude an equal one (docs/once.md)."""

    once: Once = False

    def validate(self) -> dict[str, bool]:
        """Check that it is one of its values."""
        return {
            f"once must be True, False, 'step' or 'conversation', but is {self.once!r}": not (
                isinstance(self.once, bool) or self.once in ("step", "conversation")
            )
        }

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """The value, if it is set."""
        return self.once or None
