"""Assemble a chat completion from the chunks of a stream: pieces are gathered, and the answer is decided by the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, ClassVar

from mulligan.activities.models._json_fields import as_text, has_failed
from mulligan.activities.models._read_response import BROKE_OFF, StreamAssembler, check_parts
from mulligan.activities.models.openai._chat_calls import ChatCalls
from mulligan.activities.models.openai._chat_fields import is_text_part, join_deltas
from mulligan.activities.models.openai._openai_usage import openai_usage
from mulligan.activities.models.protocol import Unavailable, Written

_TEXT_FIELDS = ("content", "refusal", "reasoning_content")
_OWN_FIELDS = (*_TEXT_FIELDS, "role", "tool_calls", "function_call")
_TOP_LEVEL = ("id", "model", "usage", "service_tier")
_REPEATED_CHARS = 8
"""A shorter piece that equals the whole text before it is no repetition, but the next piece: `ha` after `ha`."""


class ChatAssembler(StreamAssembler):
    """A `StreamAssembler` for Chat Completions."""

    request_fields: ClassVar[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(self, on_text: Callable[[str], None], written: Written | None = None) -> None:
        super().__init__(on_text, written)
        self._top_level: dict[str, Any] = {}
        self._message = _Message(0)
        self._first: _Message | None = None
        """The message without the pieces of other indexes than its own."""
        self._newest, self._is_counted = 0, True
        """The newest index of a choice, and whether the indexes may count the chunks of one message."""
        self._is_done = False

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return self._message.has_begun

    def add(self, event: dict[str, Any]) -> None:
        """Add a chunk."""
        self._top_level |= {name: event[name] for name in _TOP_LEVEL if event.get(name)}
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            self._top_level |= {"usage": choice["usage"]} if choice.get("usage") else {}
            delta = choice.get("delta") or choice.get("message")  # some servers send the whole message as one chunk
            is_whole = not choice.get("delta") or event.get("object") == "chat.completion"
            if delta or choice.get("finish_reason"):
                self._add_delta(choice, delta if isinstance(delta, dict) else {}, is_whole=is_whole)
        if self._top_level.get("usage"):
            self._written.usage = openai_usage(self._top_level)

    def mark_done(self) -> None:
        """Note that the endpoint sent `[DONE]`."""
        self._is_done = True

    def result(self) -> dict[str, Any]:
        """Return the completion as it is without streaming.

        Raises:
            Unavailable: the stream had neither a finish reason nor `[DONE]`, or nothing else.
        """
        reason = self._message.finish_reason
        if reason is None and not self._is_done:
            raise Unavailable(BROKE_OFF)
        message = self._message.result()
        if not message and reason is None:
            raise Unavailable("the endpoint's answer has no choices (is its base URL that of Chat Completions?)")
        return {**self._top_level, "choices": [{"message": message, "finish_reason": reason}]}

    def _add_delta(self, choice: dict[str, Any], delta: dict[str, Any], *, is_whole: bool) -> None:
        index, reason = choice.get("index"), choice.get("finish_reason")
        index = index if isinstance(index, int) else 0
        if not self._is_of_answer(index):
            return
        message = self._message
        for name, text in message.add_texts(delta, is_whole=is_whole):
            self._written.add(text)
            is_shown = name == "content" or (name == "refusal" and "content" not in message.texts)
            if text and is_shown and not index:
                self.on_text(text)
        is_whole = is_whole or bool(reason) or {"role", "content"} <= delta.keys()
        for number, call_id, name, text in message.add_calls(delta, is_whole=is_whole):
            self._written.add(text)
            if text and not index:
                self.on_call(number, call_id, name, text)
        message.end(reason)

    def _is_of_answer(self, index: int) -> bool:
        """Whether a piece with an index is one of the answer's. Of several answers, that with the lowest index counts.

        Some servers count the chunks of the one answer so: then the index only grows, and only the last chunk has a reason.
        Such pieces are not passed on as they come, as it is not known yet.
        """
        message, newest, self._newest = self._message, self._newest, index
        if index == message.index and self._first is None:
            return True
        if message.is_empty:
            self._message = _Message(index)
        elif index < message.index:
            self._message, self._first, self._is_counted = _Message(index), None, False
        elif index == message.index:
            self._message, self._first, self._is_counted = self._first or message, None, False
        elif not self._is_counted or index < newest or (message.finish_reason is not None and index > newest):
            return False
        else:
            self._first = self._first or deepcopy(message)
        return True


class _Message:
    """The message of a choice, while its pieces arrive. `index`: that of the choice."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: Any = None
        self.texts: dict[str, _Text] = {}
        self._parts: list[tuple[int, int, Any]] = []
        """The parts of the content that are more than a text, each with its place in the text."""
        self._fields: dict[str, Any] = {}
        """The fields that are only kept."""
        self._calls, self._function_call = ChatCalls(), ChatCalls()
        self._has_deltas = False

    @property
    def has_begun(self) -> bool:
        """Whether there is a text or a call."""
        return bool(self.texts or self._calls or self._function_call)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all."""
        return not (self.has_begun or self._fields or self._parts or self.finish_reason)

    def end(self, reason: Any) -> None:
        """Note a finish reason. One that tells an error stays."""
        reason = reason.get("type") if isinstance(reason, dict) else reason  # SGLang
        if not has_failed(self.finish_reason):
            self.finish_reason = reason or self.finish_reason

    def add_texts(self, delta: dict[str, Any], *, is_whole: bool) -> Iterator[tuple[str, str]]:
        """Add the texts and the kept fields of a chunk, and yield the pieces that are new, with their fields.

        `is_whole`: the chunk is a message, which after deltas is all of them once more.
        """
        is_again = is_whole and self._has_deltas
        self._has_deltas |= not is_whole
        fields = {name: value for name, value in delta.items() if name not in _OWN_FIELDS and value is not None}
        if fields:
            self._fields = self._fields | fields if is_again else join_deltas(self._fields, fields)
        if is_again and isinstance(delta.get("content"), list):
            self._parts.clear()
        for name in _TEXT_FIELDS:
            value = delta.get(name)
            if is_again and (text := content_text(value)):
                yield name, self._text(name).replace(text)
                value = [each for each in value if not is_text_part(each)] if isinstance(value, list) else None
            if value is None:
                continue
            for part in value if isinstance(value, list) else [value]:
                text = part if isinstance(part, str) else content_text([part])
                if text:
                    yield name, "" if is_again else self._text(name).add(text, may_grow=is_whole)
                if not isinstance(part, str) and not is_text_part(part):
                    size = self.texts[name].size if name in self.texts else 0
                    self._parts.append((size - len(text), size, part))
                    check_parts(len(self._parts))

    def add_calls(self, delta: dict[str, Any], *, is_whole: bool) -> Iterator[tuple[int, str, str, str]]:
        """Add the calls of a chunk, and yield the pieces that are new. `is_whole`: the chunk seems to be a whole message."""
        if isinstance(calls := delta.get("tool_calls"), list):
            yield from self._calls.add(calls, is_whole=is_whole)
        if called := delta.get("function_call"):
            yield from self._function_call.add([{"index": 0, "function": called}], is_whole=is_whole)

    def result(self) -> dict[str, Any]:
        message: dict[str, Any] = {name: text.whole for name, text in self.texts.items()} | self._fields
        if self._parts:
            message["content"] = list(self._content(message.get("content", "")))
        if self._calls:
            message["tool_calls"] = self._calls.result()
        elif self._function_call:
            message["function_call"] = self._function_call.result()[0]["function"]
        return message

    def _text(self, name: str) -> _Text:
        return self.texts.setdefault(name, _Text())

    def _content(self, text: str) -> Iterator[Any]:
        at = 0
        for start, end, part in [*self._parts, (len(text), len(text), None)]:
            if start > at:
                yield {"type": "text", "text": text[at:start]}
            at = end
            if part is not None:
                yield part


class _Text:
    """A text, while its pieces arrive."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0
        self._repeated = ""
        """A piece that equals the whole text before it: if others follow, it was no repetition."""

    @property
    def whole(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def add(self, piece: str, *, may_grow: bool) -> str:
        """Add a piece, and return what is new of it. `may_grow`: it may also be the text so far with more at its end."""
        if may_grow and len(piece) > self.size > 0 and piece.startswith(self.whole):
            piece = piece[self.size :]
        elif not self._repeated and len(piece) == self.size >= _REPEATED_CHARS and piece == self.whole:
            self._repeated = piece
            return ""
        piece, self._repeated = self._repeated + piece, ""
        self._pieces.append(piece)
        self.size += len(piece)
        return piece

    def replace(self, whole: str) -> str:
        """Set the text, as a message at the end of a stream has it, and return what is new of it."""
        before = self.whole
        if whole.strip() == before.strip():
            return ""
        self._pieces, self.size, self._repeated = [whole], len(whole), ""
        return whole[len(before) :] if whole.startswith(before) else ""


def content_text(content: object) -> str:
    """The text of a `content` field: a text, or a list of parts."""
    if not isinstance(content, list):
        return as_text(content)
    return "".join(as_text(part.get("text")) if isinstance(part, dict) else as_text(part) for part in content)
