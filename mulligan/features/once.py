"""The option `once` of tools: which calls are not executed a second time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mulligan.features.tool_option import ToolOption, Traits
from mulligan.once import Once

if TYPE_CHECKING:
    from mulligan.tool import Tool


@dataclass(frozen=True, kw_only=True)
class OnceOption(ToolOption):
    """Which calls that have succeeded exclude an equal one (docs/once.md)."""

    once: Once = False

    def faults(self, tool: Tool) -> dict[str, bool]:
        """Check that it is one of its values."""
        return {
            f"once must be True, False, 'step' or 'conversation', but is {self.once!r}": not (
                isinstance(self.once, bool) or self.once in ("step", "conversation")
            )
        }

    @property
    def traits(self) -> Traits:
        """An excluded call asks nobody."""
        return Traits(may_be_settled=bool(self.once))
