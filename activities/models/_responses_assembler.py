"""Assemble a response of the Responses API from the events of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mulligan.activities.models._json_fields import token_count
from mulligan.activities.models._read_response import check_parts
from mulligan.activities.models.protocol import Unavailable, Written
from mulligan.values import Usage

TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesAssembler:
    """A `StreamAssembler` for the Responses API.

    Args:
        on_text: Called with each piece of the answer's text, or of its refusal, as it arrives.
        written: What has arrived is added to it.
    """

    request_fields: ClassVar[dict[str, Any]] = {"stream": True}

    def __init__(self, on_text: Callable[[str], None], written: Written | None = None) -> None:
        self.on_text, self._written = on_text, written or Written()
        self._items: dict[Any, Any] = {}
        self._current_message: Any = None
        self._response: dict[str, Any] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return self._current_message is not None or bool(self._items)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event."""
        kind = event.get("type")
        if str(kind).endswith(".delta") and isinstance(piece := event.get("delta"), str):
            self._written.add(piece)
        if kind in TEXT_EVENTS and isinstance(delta := event.get("delta"), str):
            message = event.get("output_index")
            if self._current_message not in (None, message):
                self.on_text("\n\n")  # as the messages of an answer are joined in its text
            self._current_message = message
            self.on_text(delta)
        elif kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = event.get("item")
            check_parts(len(self._items))
        elif kind in FINAL_EVENTS and isinstance(response := event.get("response"), dict):
            self._response = response
            self._written.usage = usage_of(response.get("usage"))
        elif kind == "error" or (kind is None and event.get("error")):
            self._response = {"error": event.get("error") or event}

    def mark_done(self) -> None:
        """Do nothing: compatible servers send `[DONE]`, but the final event has ended the response already."""

    def result(self) -> dict[str, Any]:
        """Return the response as it is without streaming.

        Raises:
            Unavailable: the stream had no final event.
        """
        if self._response is None:
            raise Unavailable("the endpoint's answer broke off in the middle")
        if not self._response.get("output") and self._items:
            return {**self._response, "output": list(self._items.values())}
        return self._response


def usage_of(usage: object) -> Usage:
    """The tokens that an endpoint has counted."""
    return Usage(
        input_tokens=token_count(usage, "input_tokens"),
        output_tokens=token_count(usage, "output_tokens"),
        cached_input_tokens=token_count(usage, "input_tokens_details", "cached_tokens"),
        reasoning_tokens=token_count(usage, "output_tokens_details", "reasoning_tokens"),
        cache_write_tokens=token_count(usage, "input_tokens_details", "cache_write_tokens"),
    )
