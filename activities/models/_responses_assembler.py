"""A response of the Responses API from its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mulligan.activities.models.protocol import Unavailable

_TEXT = ("response.output_text.delta", "response.refusal.delta")
_LAST = ("response.completed", "response.incomplete", "response.failed")


class ResponsePieces:
    """The events of one answer; `on_text` is told what is to be read of it as it comes."""

    asks: ClassVar[dict[str, Any]] = {"stream": True}

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._items: dict[Any, Any] = {}
        self._writes: Any = None
        self._last: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Add an event."""
        kind = event.get("type")
        if kind in _TEXT and isinstance(delta := event.get("delta"), str):
            message = event.get("output_index")
            if self._writes not in (None, message):
                self._on_text("\n\n")  # as the answer's messages are joined in the end
            self._writes = message
            self._on_text(delta)
        elif kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = event.get("item")
        elif kind in _LAST and isinstance(response := event.get("response"), dict):
            self._last = response
        elif kind == "error" or (kind is None and event.get("error")):
            self._last = {"error": event.get("error") or event}

    def done(self) -> None:
        """`[DONE]`, from compatible servers: the last event has said so already."""

    def whole(self) -> dict[str, Any]:
        """The response as it comes in one piece.

        Raises:
            Unavailable: there was no last event.
        """
        if self._last is None:
            raise Unavailable("the endpoint's answer broke off in the middle")
        if not self._last.get("output") and self._items:
            return {**self._last, "output": list(self._items.values())}
        return self._last
