"""A chat completion from its chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mulligan.activities.models._openai_client import as_text
from mulligan.activities.models.protocol import Unavailable

_TEXTS = ("content", "refusal", "reasoning_content")


class ChatPieces:
    """The chunks of one answer; `on_text` is told what is to be read of it as it comes."""

    asks: ClassVar[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._answer: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_Call] = []
        self._numbered: dict[Any, _Call] = {}
        self._legacy: _Call | None = None
        self._finish: Any = None
        self._is_done = False

    def take(self, chunk: dict[str, Any]) -> None:
        """Add a chunk."""
        self._answer |= {name: chunk[name] for name in ("id", "model", "usage", "error") if chunk.get(name)}
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                self._finish = choice.get("finish_reason") or self._finish
                delta = choice.get("delta") or choice.get("message")  # whole, from servers that only pretend
                if isinstance(delta, dict):
                    self._add(delta)

    def done(self) -> None:
        """`[DONE]`."""
        self._is_done = True

    def whole(self) -> dict[str, Any]:
        """The completion as it comes in one piece.

        Raises:
            Unavailable: neither a finish reason nor an end was said.
        """
        if "error" in self._answer:
            return {"error": self._answer["error"]}
        if self._finish is None and not self._is_done:
            raise Unavailable("the endpoint's answer broke off in the middle")
        message: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        elif self._legacy is not None:
            message["function_call"] = self._legacy.whole()["function"]
        choices = [{"message": message, "finish_reason": self._finish}] if message or self._finish else []
        return {**self._answer, "choices": choices}

    def _add(self, delta: dict[str, Any]) -> None:
        for name in _TEXTS:
            text = _text(delta.get(name))
            if text:
                said = self._texts.setdefault(name, [])
                said.append(text)
                if name == "content" or (name == "refusal" and "content" not in self._texts):
                    self._on_text(text)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._call(call if isinstance(call, dict) else {}).add(call)
        if delta.get("function_call"):
            self._legacy = self._legacy or _Call("")
            self._legacy.add({"function": delta["function_call"]})

    def _call(self, piece: dict[str, Any]) -> _Call:
        """The call that a piece belongs to: its index says so.

        Some servers give none, others the same to all calls of an answer: another id is another call.
        """
        index, call_id = piece.get("index"), as_text(piece.get("id"))
        call = self._numbered.get(index)
        if call is None and index is None and self._calls and not call_id:
            call = self._calls[-1]
        if call is None or (call_id and call.id and call_id != call.id):
            call = _Call(call_id)
            self._calls.append(call)
            self._numbered[index] = call
        call.id = call.id or call_id
        return call


class _Call:
    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self._name: list[str] = []
        self._arguments: list[str] = []

    def add(self, piece: Any) -> None:
        function = piece.get("function") if isinstance(piece, dict) else None
        if isinstance(function, dict):
            name = as_text(function.get("name"))
            if name and self._name != [name]:  # some servers say it each time
                self._name.append(name)
            self._arguments.append(as_text(function.get("arguments")))

    def whole(self) -> dict[str, Any]:
        function = {"name": "".join(self._name), "arguments": "".join(self._arguments)}
        return {"id": self.id, "type": "function", "function": function}


def _text(content: object) -> str:
    """A piece of text; from some servers a list of parts."""
    if not isinstance(content, list):
        return as_text(content)
    return "".join(as_text(part.get("text")) if isinstance(part, dict) else as_text(part) for part in content)
