"""Assemble a response of the Responses API from the events of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models._read_response import BROKE_OFF, StreamAssembler, check_parts
from mulligan.activities.models.openai._openai_usage import openai_usage
from mulligan.activities.models.protocol import Unavailable, Written

TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
ARGUMENTS_EVENT = "response.function_call_arguments.delta"
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class ResponsesAssembler(StreamAssembler):
    """A `StreamAssembler` for the Responses API."""

    def __init__(self, on_text: Callable[[str], None], written: Written | None = None) -> None:
        super().__init__(on_text, written)
        self._items: dict[Any, Any] = {}
        self._response: dict[str, Any] | None = None
        self._calls: dict[Any, tuple[int, str, str]] = {}
        """The number, the id and the name of each call, by the index of its item."""

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return self._text_part is not None or bool(self._items)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event."""
        kind = event.get("type")
        if str(kind).endswith(".delta") and isinstance(piece := event.get("delta"), str):
            self._written.add(piece)
        if kind in TEXT_EVENTS and isinstance(delta := event.get("delta"), str):
            self._add_text(delta, event.get("output_index"))
        elif kind == "response.output_item.added" and isinstance(item := event.get("item"), dict):
            if item.get("type") == "function_call":
                call = (len(self._calls), as_text(item.get("call_id")), as_text(item.get("name")))
                self._calls[event.get("output_index")] = call
                check_parts(len(self._calls))
                self.on_call(*call, as_text(item.get("arguments")))
        elif kind == ARGUMENTS_EVENT and event.get("output_index") in self._calls:
            self.on_call(*self._calls[event.get("output_index")], as_text(event.get("delta")))
        elif kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = event.get("item")
            check_parts(len(self._items))
        elif kind in FINAL_EVENTS and isinstance(response := event.get("response"), dict):
            self._response = response
            self._written.usage = openai_usage(response)

    def result(self) -> dict[str, Any]:
        """Return the response as it is without streaming.

        Raises:
            Unavailable: the stream had no final event.
        """
        if self._response is None:
            raise Unavailable(BROKE_OFF)
        if not self._response.get("output") and self._items:
            items = sorted(
                self._items.items(), key=lambda item: item[0] if isinstance(item[0], int) else len(self._items)
            )
            return {**self._response, "output": [item for _, item in items]}
        return self._response
