"""Assemble a chat completion from the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mulligan.activities.models._chat_fields import is_text_part, join_deltas
from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models._openai_usage import openai_usage
from mulligan.activities.models._read_response import StreamAssembler, check_parts
from mulligan.activities.models.protocol import Unavailable, Written

_TEXT_FIELDS = ("content", "refusal", "reasoning_content")
_OWN_FIELDS = (*_TEXT_FIELDS, "role", "tool_calls", "function_call")
_OF_CALL = ("id", "index", "type", "function")
_TOP_LEVEL = ("id", "model", "usage", "service_tier", "error")


class ChatAssembler(StreamAssembler):
    """A `StreamAssembler` for Chat Completions."""

    request_fields: ClassVar[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(self, on_text: Callable[[str], None], written: Written | None = None) -> None:
        super().__init__(on_text, written)
        self._top_level: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._fields: dict[str, Any] = {}
        """The fields that are only kept."""
        self._parts: list[Any] = []
        """The parts of the content: each text as a list of its pieces, and others as they came."""
        self._calls: list[_CallAssembler] = []
        self._calls_by_index: dict[Any, _CallAssembler] = {}
        self._function_call: _CallAssembler | None = None
        self._finish_reason: Any = None
        self._is_done = False

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return bool(self._texts or self._calls or self._function_call)

    def add(self, event: dict[str, Any]) -> None:
        """Add a chunk."""
        self._top_level |= {name: event[name] for name in _TOP_LEVEL if event.get(name)}
        if event.get("usage"):
            self._written.usage = openai_usage(self._top_level)
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                delta = choice.get("delta") or choice.get("message")  # some servers send the whole message as one chunk
                if isinstance(delta, dict):
                    self._add_delta(delta)

    def mark_done(self) -> None:
        """Note that the endpoint sent `[DONE]`."""
        self._is_done = True

    def result(self) -> dict[str, Any]:
        """Return the completion as it is without streaming.

        Raises:
            Unavailable: the stream had neither a finish reason nor `[DONE]`.
        """
        if "error" in self._top_level:
            return {"error": self._top_level["error"]}
        if self._finish_reason is None and not self._is_done:
            raise Unavailable("the endpoint's answer broke off in the middle")
        message: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._texts.items()} | self._fields
        if not all(isinstance(part, list) for part in self._parts):
            texts = [
                {"type": "text", "text": "".join(part)} if isinstance(part, list) else part for part in self._parts
            ]
            message["content"] = texts
        if self._calls:
            message["tool_calls"] = [call.result() for call in self._calls]
        elif self._function_call is not None:
            message["function_call"] = self._function_call.result()["function"]
        is_empty = not message and not self._finish_reason
        choices = [] if is_empty else [{"message": message, "finish_reason": self._finish_reason}]
        return {**self._top_level, "choices": choices}

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for name in _TEXT_FIELDS:
            text = content_text(delta.get(name))
            if text:
                self._texts.setdefault(name, []).append(text)
                self._written.add(text)
                if name == "content" or (name == "refusal" and "content" not in self._texts):
                    self.on_text(text)
        content = delta.get("content")
        for part in content if isinstance(content, list) else [content] if content else []:
            self._add_part(part)
        fields = {name: value for name, value in delta.items() if name not in _OWN_FIELDS and value is not None}
        if fields:
            join_deltas(self._fields, fields)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            assembler = self._call_of(call if isinstance(call, dict) else {})
            self._written.add(piece := assembler.add(call))
            if piece:
                self.on_call(assembler.number, assembler.id, assembler.name, piece)
        if delta.get("function_call"):
            self._function_call = self._function_call or _CallAssembler("", 0)
            self._written.add(self._function_call.add({"function": delta["function_call"]}))

    def _add_part(self, part: Any) -> None:
        if is_text_part(part):
            if not self._parts or not isinstance(self._parts[-1], list):
                self._parts.append([])
            self._parts[-1].append(content_text([part]))
        else:
            self._parts.append(part)
        check_parts(len(self._parts))

    def _call_of(self, delta: dict[str, Any]) -> _CallAssembler:
        """The call that a delta belongs to, by its index.

        Some servers send no index, others the same index for every call of an answer: there a new id begins a new call.
        """
        index, call_id = delta.get("index"), as_text(delta.get("id"))
        call = self._calls_by_index.get(index)
        if call is None and index is None and self._calls and not call_id:
            call = self._calls[-1]
        if call is None or (call_id and call.id and call_id != call.id):
            call = _CallAssembler(call_id, len(self._calls))
            self._calls.append(call)
            check_parts(len(self._calls))
            self._calls_by_index[index] = call
        call.id = call.id or call_id
        return call


class _CallAssembler:
    """One tool call, whose name and arguments arrive in pieces."""

    def __init__(self, call_id: str, number: int) -> None:
        self.id, self.number = call_id, number
        self._name: list[str] = []
        self._arguments: list[str] = []
        self._kind = "function"
        self._fields: dict[str, Any] = {}
        self._function_fields: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The name so far."""
        return "".join(self._name)

    def add(self, delta: Any) -> str:
        """Add a piece of the call, and return its arguments."""
        if not isinstance(delta, dict):
            return ""
        self._kind = as_text(delta.get("type")) or self._kind
        join_deltas(self._fields, {name: value for name, value in delta.items() if name not in _OF_CALL})
        function = delta.get("function")
        if not isinstance(function, dict):
            return ""
        more = {name: value for name, value in function.items() if name not in ("name", "arguments")}
        join_deltas(self._function_fields, more)
        name = as_text(function.get("name"))
        if name and self._name != [name]:  # some servers repeat the whole name in each delta
            self._name.append(name)
        self._arguments.append(as_text(function.get("arguments")))
        return self._arguments[-1]

    def result(self) -> dict[str, Any]:
        call = {"id": self.id, "type": self._kind, **self._fields}
        if self._kind != "function" and not self._name and not self._arguments:
            return call
        function = {"name": self.name, "arguments": "".join(self._arguments), **self._function_fields}
        return {**call, "type": "function", "function": function}


def content_text(content: object) -> str:
    """The text of a `content` field: a text, or a list of parts."""
    if not isinstance(content, list):
        return as_text(content)
    return "".join(as_text(part.get("text")) if isinstance(part, dict) else as_text(part) for part in content)
