"""Assemble an answer of Gemini's API from the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from mulligan.activities.models._json_fields import MOST_TOKENS, as_text, token_count
from mulligan.activities.models._read_response import BROKE_OFF, StreamAssembler, check_parts
from mulligan.activities.models.protocol import Unavailable, Written
from mulligan.values import Usage

_TOP_LEVEL = ("usageMetadata", "modelVersion", "responseId", "promptFeedback")
_OF_CANDIDATE = ("finishReason", "finishMessage", "groundingMetadata", "citationMetadata", "urlContextMetadata")
"""The fields that are read: others of a stream are not kept. Of each, the last chunk that has it counts."""


class GoogleAssembler(StreamAssembler):
    """A `StreamAssembler` for `streamGenerateContent`."""

    request_fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, on_text: Callable[[str], None], written: Written | None = None) -> None:
        super().__init__(on_text, written)
        self._top_level: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._texts: list[list[str]] = []
        """The pieces of the text of each part."""
        self._calls: dict[str | int, Any] = {}
        """The calls by their ids, or by their numbers."""

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return bool(self._parts)

    def add(self, event: dict[str, Any]) -> None:
        """Add a chunk."""
        self._top_level |= {name: event[name] for name in _TOP_LEVEL if event.get(name)}
        if "usageMetadata" in event:
            self._written.usage = usage_of(event["usageMetadata"])
        candidates = event.get("candidates")
        candidate = candidates[0] if isinstance(candidates, list) and candidates else None
        if not isinstance(candidate, dict):
            return
        self._candidate |= {name: candidate[name] for name in _OF_CANDIDATE if candidate.get(name) is not None}
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                self._add_part(dict(part))

    def result(self) -> dict[str, Any]:
        """Return the response as it is without streaming.

        Raises:
            Unavailable: the stream ended before the answer.
        """
        feedback = self._top_level.get("promptFeedback")
        is_blocked = isinstance(feedback, dict) and bool(feedback.get("blockReason"))
        if not self._candidate.get("finishReason") and not is_blocked:
            raise Unavailable(BROKE_OFF)
        if not self._candidate and not self._parts:
            return self._top_level
        parts = [
            {**part, "text": "".join(texts)} if texts else part
            for part, texts in zip(self._parts, self._texts, strict=True)
        ]
        content = {"role": "model", "parts": parts}
        return {**self._top_level, "candidates": [{**self._candidate, "content": content}]}

    def _add_part(self, part: dict[str, Any]) -> None:
        """Add a part. Pieces of a text are joined, but never a part that has a signature with one that has none."""
        self._written.add(as_text(part.get("text")) or json.dumps(part.get("functionCall") or ""))
        if isinstance(text := part.get("text"), str) and text and not part.get("thought"):
            self.on_text(text)
        if isinstance(call := part.get("functionCall"), dict):
            if (call_id := as_text(call.get("id"))) and self._calls.get(call_id) == call:
                return  # some servers repeat the whole answer at its end
            number = len(self._calls)
            self._calls[call_id if call_id and call_id not in self._calls else number] = call
            self.on_call(number, call_id, as_text(call.get("name")), as_text(call.get("args") or {}))
        before = self._parts[-1] if self._parts else {}
        fields = {"text", "thought"}
        is_piece = before and before.keys() <= fields and part.keys() <= fields
        if not (is_piece and before.get("thought") == part.get("thought")):
            self._parts.append(part)
            self._texts.append([])
            check_parts(len(self._parts))
        if isinstance(text, str):
            self._texts[-1].append(text)


def usage_of(usage: object) -> Usage:
    """The tokens. The API counts those of thoughts beside the answer's."""
    thoughts = token_count(usage, "thoughtsTokenCount")
    prompt = token_count(usage, "promptTokenCount") + token_count(usage, "toolUsePromptTokenCount")
    return Usage(
        input_tokens=min(prompt, MOST_TOKENS),
        output_tokens=min(token_count(usage, "candidatesTokenCount") + thoughts, MOST_TOKENS),
        cached_input_tokens=token_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )
