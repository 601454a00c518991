"""Answers that an endpoint has judged itself, and refused: the model wrote a call that it could not read, or take.

They come as errors of the request, which they are not: the model is told, as of its other mistakes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mulligan.activities.models._http_errors import message_in
from mulligan.activities.models.protocol import Mistake, MistakeKind, Reply
from mulligan.errors import ModelRequestError
from mulligan.schema.cut_text import beginning
from mulligan.values import ToolCall, Usage

_CODES = ("tool_use_failed", "output_parse_failed", "json_validate_failed")
"""Codes of Groq's errors."""
_WORDS = re.compile(
    r"^error parsing tool call|^failed to parse input at pos \d|tool call validation failed|^failed to call a function\b",
    re.IGNORECASE,
)
"""Of Ollama (with 500), llama.cpp (with 500), and Groq, also through a gateway that leaves out the code."""
_UNKNOWN_TOOL = re.compile(r"not in request\.tools|unknown (tool|function)|no such (tool|function)", re.IGNORECASE)
_INVALID_ARGUMENTS = re.compile(
    r"did not match schema|parameters for tool|invalid (arguments|parameters)", re.IGNORECASE
)
_TAGGED = re.compile(r"<function=([\w.-]{1,64})\W{0,2}?>?\s*(\{.*\})", re.DOTALL)
"""A call as Llama writes it."""
MOST_CHARS = 100_000


class AnswerRefusedError(ModelRequestError):
    """An endpoint refuses what its model wrote.

    Args:
        message: What the endpoint says.
        written: What the model wrote, if the endpoint says it.
    """

    def __init__(self, message: str, written: str) -> None:
        super().__init__(f"The model's endpoint refused its answer: {message}")
        self.says, self.written = message, beginning(written, MOST_CHARS)

    def reply(self) -> Reply:
        """The answer: the call that the model wrote, if that can be read; otherwise its text."""
        calls = _calls_in(self.written)
        return Reply(
            text="" if calls else self.written,
            calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            usage=Usage(),
            mistake=Mistake(_kind_of(self.says), self.says),
        )


def refused_answer(body: object) -> AnswerRefusedError | None:
    """The error for the body of a response, or an event of a stream, that refuses an answer; None for any other."""
    told = body.get("error", body) if isinstance(body, Mapping) else body
    fields: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    message, written = message_in(body), fields.get("failed_generation")
    if fields.get("code") not in _CODES and not written and not _WORDS.search(message):
        return None
    raw = re.search(r"raw='(.*)', err=|at pos \d+: (.*)", message, re.DOTALL)
    quoted = next(filter(None, raw.groups()), "") if raw else ""
    return AnswerRefusedError(message, written if isinstance(written, str) else quoted)


def _kind_of(says: str) -> MistakeKind:
    if _INVALID_ARGUMENTS.search(says):
        return "invalid_arguments"
    return "unknown_tool" if _UNKNOWN_TOOL.search(says) else "invalid_json"


def _calls_in(written: str) -> list[ToolCall]:
    """The call that the model wrote; none if that cannot be said."""
    if tagged := _TAGGED.search(written):
        return [ToolCall(id="", name=tagged[1], arguments=tagged[2])]
    try:
        call = json.loads(written)
    except (ValueError, RecursionError):
        return []
    call = call[0] if isinstance(call, list) and len(call) == 1 else call
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
        return []
    arguments = call.get("arguments", call.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return [ToolCall(id="", name=name, arguments=text)]
