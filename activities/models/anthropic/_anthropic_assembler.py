"""Assemble an answer of Anthropic's Messages API from the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mulligan.activities.models._json_fields import MOST_TOKENS, as_text, token_count
from mulligan.activities.models._legal_calls import legal_object
from mulligan.activities.models._read_response import BROKE_OFF, StreamAssembler, check_parts
from mulligan.activities.models.anthropic._anthropic_blocks import continues_text
from mulligan.activities.models.protocol import Unavailable, Written
from mulligan.values import Usage

_ENDS = ("stop_reason", "stop_sequence", "stop_details", "container")
_COUNTS = (
    *("input_tokens", "output_tokens", "output_tokens_details"),
    *("cache_read_input_tokens", "cache_creation_input_tokens", "server_tool_use"),
)
"""The fields of a message and of its usage that are read: others of a stream are not kept."""
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "input"}
"""The field of a block that the pieces of a delta continue."""
_KINDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}
"""The type of a block that begins with a delta."""


class AnthropicAssembler(StreamAssembler):
    """A `StreamAssembler` for the Messages API.

    Args:
        on_text: Called with each piece of the answer's text.
        written: What has arrived is added to it.
        before: The blocks of an answer that this one continues.
        spent: The tokens of those.
    """

    def __init__(
        self,
        on_text: Callable[[str], None],
        written: Written | None = None,
        *,
        before: Sequence[dict[str, Any]] = (),
        spent: Usage | None = None,
    ) -> None:
        super().__init__(on_text, written)
        self._message: dict[str, Any] = {}
        self._spent = spent or Usage()
        self._blocks: dict[Any, dict[str, Any]] = {number - len(before): block for number, block in enumerate(before)}
        """The blocks by their indexes, which are negative before the answer."""
        texts = [number for number, block in self._blocks.items() if block.get("type") == "text" and block.get("text")]
        self._text_part = self._first_text(texts[-1]) if texts else None
        self._numbers: dict[int | None, int] = {}
        """The numbers of the blocks by the indexes of their events, which some servers repeat or leave out."""
        self._newest = -1
        self._pieces: dict[Any, dict[str, list[str]]] = {}
        self._is_done = False

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return any(index >= 0 for index in self._blocks)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of the stream to the answer."""
        kind = event.get("type")
        if kind == "message_start" and isinstance(message := event.get("message"), dict):
            self._message = {**message, "usage": _counts(message.get("usage"))}
            self._written.usage = self._spent + usage_of(self._message["usage"])
        elif kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
            number = self._begin(event, block)
            self._add_delta(number, {"type": "text_delta", "text": block.get("text")})
            self._pass_call(number, "")
        elif kind == "content_block_delta" and isinstance(delta := event.get("delta"), dict):
            continued = self._number_of(event)
            if continued is None:
                continued = self._begin(event, {"type": _KINDS.get(str(delta.get("type")))})
            self._add_delta(continued, delta)
        elif kind == "message_delta":
            delta = event.get("delta")
            ends = {name: delta[name] for name in _ENDS if name in delta} if isinstance(delta, dict) else {}
            self._message.update(ends)
            self._is_done = self._is_done or bool(ends.get("stop_reason"))
            self._message["usage"] = {**self._message.get("usage", {}), **_counts(event.get("usage"))}
            self._written.usage = self._spent + usage_of(self._message["usage"])
        elif kind == "message_stop":
            self._is_done = True

    def result(self) -> dict[str, Any]:
        """Return the message as it is without streaming, but a call's `input` is the text that the model wrote.

        Raises:
            Unavailable: the stream had neither a reason for its end nor a final event.
        """
        if not self._is_done:
            raise Unavailable(BROKE_OFF)
        return {**self._message, "content": [self._block(index) for index in self._blocks if index >= 0]}

    def _begin(self, event: dict[str, Any], block: dict[str, Any]) -> int:
        """Begin a block, and return its number."""
        number = self._numbers[_index(event)] = self._newest = self._newest + 1
        self._blocks[number] = dict(block)
        check_parts(len(self._blocks))
        return number

    def _number_of(self, event: dict[str, Any]) -> int | None:
        """The number of the block that an event continues; None: of none."""
        index = _index(event)
        return self._numbers.get(index, self._newest if index is None and self._newest >= 0 else None)

    def _add_delta(self, index: Any, delta: dict[str, Any]) -> None:
        kind = str(delta.get("type"))
        field = _DELTAS.get(kind)
        if field is None:
            self._set_fields(self._blocks.setdefault(index, {}), kind, delta)
            return
        piece = delta.get("partial_json" if field == "input" else field)
        if not isinstance(piece, str) or not piece:
            return
        self._pieces.setdefault(index, {}).setdefault(field, []).append(piece)
        self._written.add(piece)
        if field == "text":
            self._add_text(piece, self._first_text(index))
        elif field == "input":
            self._pass_call(index, piece)

    def _pass_call(self, index: Any, piece: str) -> None:
        """Pass on a piece of a call: of a block that is one of the agent's."""
        block = self._blocks.get(index, {})
        if block.get("type") == "tool_use":
            calls = [number for number, each in self._blocks.items() if each.get("type") == "tool_use"]
            self.on_call(calls.index(index), as_text(block.get("id")), as_text(block.get("name")), piece)

    def _set_fields(self, block: dict[str, Any], kind: str, delta: dict[str, Any]) -> None:
        """Add a citation to its block, or set the fields of a block that a delta of another type has."""
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
            check_parts(len(block["citations"]))
        else:
            block |= {name: value for name, value in delta.items() if name != "type"}

    def _first_text(self, index: Any) -> Any:
        """The first of the blocks of text that are one text together with this one."""
        blocks = list(self._blocks.values())
        number = list(self._blocks).index(index) if index in self._blocks else 0
        while continues_text(number, blocks):
            number -= 1
        return number

    def _block(self, index: Any) -> dict[str, Any]:
        block = self._blocks[index]
        written: dict[str, Any] = {field: "".join(pieces) for field, pieces in self._pieces.get(index, {}).items()}
        if "input" in written and block.get("type") != "tool_use":
            written["input"] = legal_object(written["input"]) or block.get("input") or {}
        return {**block, **written}


def _index(event: dict[str, Any]) -> int | None:
    """The index of the block that an event is about."""
    index = event.get("index")
    return index if isinstance(index, int) else None


def _counts(usage: object) -> dict[str, Any]:
    """The counts that are stated: a later event repeats some of them, others are null there."""
    return {name: usage[name] for name in _COUNTS if usage.get(name) is not None} if isinstance(usage, dict) else {}


def usage_of(usage: object) -> Usage:
    """The tokens. The API counts those that it read from its cache or wrote to it beside the input's."""
    cached, written = token_count(usage, "cache_read_input_tokens"), token_count(usage, "cache_creation_input_tokens")
    return Usage(
        input_tokens=min(token_count(usage, "input_tokens") + cached + written, MOST_TOKENS),
        output_tokens=token_count(usage, "output_tokens"),
        cached_input_tokens=cached,
        reasoning_tokens=token_count(usage, "output_tokens_details", "thinking_tokens"),
        cache_write_tokens=written,
    )
