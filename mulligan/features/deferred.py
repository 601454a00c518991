"""The options of deferred tools, whose calls are completed from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from mulligan.durations import is_duration, seconds
from mulligan.features.tool_option import ToolOption, Traits
from mulligan.schema.plain_function import takes

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


@dataclass(frozen=True, kw_only=True)
class DeferredOption(ToolOption):
    """Whether the function only starts something, for how long its result is awaited, its type, and what ends it."""

    deferred: bool = False
    deferred_timeout: float | timedelta | None = None
    result_type: Any = None
    on_cancel: Callable[..., Any] | None = None

    def faults(self, tool: Tool) -> dict[str, bool]:
        """Check the values; that the others are not there without `deferred`, and that nothing has to go on here."""
        others = (self.deferred_timeout, self.result_type, self.on_cancel)
        return {
            "deferred_timeout, result_type and on_cancel are options of deferred tools: add deferred=True": (
                not self.deferred and any(other is not None for other in others)
            ),
            f"deferred_timeout must be more than 0 seconds, or None, but is {self.deferred_timeout!r}": (
                self.deferred_timeout is not None and not is_duration(self.deferred_timeout)
            ),
            f"on_cancel must be a function of (what the tool returned, ToolContext), but is {self.on_cancel!r}": (
                self.on_cancel is not None and not takes(self.on_cancel, 2)
            ),
            f"result_type must be a type that pydantic can validate, but is {self.result_type!r}": not _is_type(
                self.result_type
            ),
        }

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """How long a call waits, and whether something must be ended; only what is set."""
        if not self.deferred:
            return None
        limit: dict[str, JsonValue] = {} if self._seconds is None else {"timeout": self._seconds}
        return limit | ({"on_cancel": True} if self.on_cancel is not None else {})

    @property
    def traits(self) -> Traits:
        """Whether it ends elsewhere, and with what."""
        return Traits(ends_elsewhere=self.deferred, time_elsewhere=self._seconds, returns=self.result_type)

    @property
    def _seconds(self) -> float | None:
        return None if self.deferred_timeout is None else seconds(self.deferred_timeout)


def _is_type(declared: Any) -> bool:
    """Whether values can be validated by it. None is no type to check, and a text has no names."""
    if isinstance(declared, str):
        return False
    try:
        TypeAdapter(declared)
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, SyntaxError, TypeError):
        return False
    return True
