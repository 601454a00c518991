"""The options of deferred tools, whose calls are completed from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, TypeAdapter

from mulligan.durations import as_timedelta, seconds
from mulligan.features.tool_option import ToolOption, Traits

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

    def validate(self) -> dict[str, bool]:
        """Check the values, and that the others are not there without `deferred`."""
        others = (self.deferred_timeout, self.result_type, self.on_cancel)
        return {
            "deferred_timeout, result_type and on_cancel are options of deferred tools: add deferred=True": (
                not self.deferred and any(other is not None for other in others)
            ),
            "deferred_timeout must be more than 0 seconds, or None": (
                self.deferred_timeout is not None and as_timedelta(self.deferred_timeout) <= timedelta(0)
            ),
            "on_cancel must be a function of (what the tool returned, ToolContext)": (
                self.on_cancel is not None and not callable(self.on_cancel)
            ),
            "result_type must be a type that pydantic can validate": not _is_type(self.result_type),
        }

    def refuses(self, tool: Tool) -> dict[str, bool]:
        """Refuse what cannot go on elsewhere."""
        return {
            "a deferred tool starts something elsewhere: it cannot be local, isolated, or a question to a person": (
                self.deferred and (tool.local or tool.isolated or tool.is_question)
            )
        }

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """How long a call waits, and whether something must be ended; only what is set."""
        if not self.deferred:
            return None
        timeout = None if self.deferred_timeout is None else seconds(self.deferred_timeout)
        limit: dict[str, JsonValue] = {} if timeout is None else {"timeout": timeout}
        return limit | ({"on_cancel": True} if self.on_cancel is not None else {})

    @property
    def traits(self) -> Traits:
        """Whether it ends elsewhere, and with what."""
        return Traits(ends_elsewhere=self.deferred, returns=self.result_type)


def _is_type(declared: Any) -> bool:
    """Whether values can be validated by it; None is no type to check."""
    try:
        TypeAdapter(declared)
    except Exception:  # noqa: BLE001 - a text is evaluated, as an annotation is, and may raise anything
        return False
    return True
