"""The events of a run as the text of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mulligan.serve.openai_api.step_text import StepText, TextClosed, TextOpened, TextPart
from mulligan.wire.event_types import Event, RunEnded, SubRunEvent

__all__ = ["ChatText", "chat_usage_json", "finish_reason", "output_text"]

VOID_NOTE = "\n\n[The text above was cut off and is void. It begins again.]\n\n"
"""Chat completions cannot withdraw text."""
BETWEEN_STEPS = "\n\n"


class ChatText:
    """The pieces of text that a client gets: the texts of all steps; at the end the output, unless it is the last one."""

    def __init__(self) -> None:
        self._text = StepText()
        self._before = ""
        """What comes before the next piece: steps are separated, and void text has a note."""
        self._step_text = ""
        self._last_text = ""
        self.end: RunEnded | None = None
        """The last event, once it was translated."""

    def pieces(self, event: Event) -> Iterator[str]:
        """The new text of an event."""
        if isinstance(event, SubRunEvent):
            return
        for change in self._text.changes(event):
            match change:
                case TextOpened():
                    self._step_text = ""
                case TextPart():
                    self._step_text += change.text
                    yield self._before + change.text
                    self._before = ""
                case TextClosed(is_void=True):
                    self._before = VOID_NOTE if self._step_text else self._before
                case TextClosed():
                    self._before, self._last_text = BETWEEN_STEPS, change.text
        if isinstance(event, RunEnded):
            self.end = event
            output = output_text(event)
            if output and not _is_same(output, self._last_text):
                yield self._before + output


def output_text(end: RunEnded) -> str:
    """The output of a run as text: structured output as JSON."""
    output = end.result.output if end.result else None
    if output is None or isinstance(output, str):
        return output or ""
    return json.dumps(output, ensure_ascii=False)


def finish_reason(end: RunEnded) -> str:
    """Why a run with a result has ended, in the words of chat completions."""
    match end.status:
        case "completed" | "stopped":
            return "stop"
        case "refused":
            return "content_filter"
    return "length"


def chat_usage_json(end: RunEnded) -> dict[str, Any]:
    """Tokens of the run, as Chat Completions names them."""
    assert end.result is not None
    usage = end.result.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _is_same(output: str, text: str) -> bool:
    if output == text:
        return True
    try:
        return bool(json.loads(output) == json.loads(text))
    except ValueError:
        return False
