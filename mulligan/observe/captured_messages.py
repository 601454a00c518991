"""Messages, instructions and tools as spans carry them: JSON of OpenTelemetry's conventions for GenAI, of bounded length.

A text of JSON that is cut in the middle is none: so long texts inside are shortened first, and then the oldest messages are
left out, of which a note says how many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mulligan.content import Media
from mulligan.content import Text as TextPart
from mulligan.observe.spans import MAX_TEXT_CHARS
from mulligan.schema.cut_text import cut_text
from mulligan.schema.well_formed import well_formed
from mulligan.values import AssistantMessage, Message, ToolMessage

_LENGTHS = (2_000, 500, 120, 30)
"""To how many characters texts are shortened, until the whole fits."""
_FINISH_REASONS = {"tool_calls": "tool_call", "refusal": "content_filter"}
"""The conventions' words for ours, where they differ."""

Json = dict[str, Any]


def input_messages(messages: Sequence[Message]) -> str:
    """The messages of a request: `gen_ai.input.messages`."""
    return _fitted([{"role": each.role, "parts": _parts(each)} for each in messages], note="messages before these")


def output_messages(answer: AssistantMessage, finish_reason: str) -> str:
    """The model's answer: `gen_ai.output.messages`. `finish_reason`: why it ended, in our word."""
    reason = _FINISH_REASONS.get(finish_reason, finish_reason)
    return _fitted([{"role": "assistant", "parts": _parts(answer), "finish_reason": reason}])


def system_instructions(text: str) -> str:
    """The instructions of a run: `gen_ai.system_instructions`."""
    return _fitted([{"type": "text", "content": text}] if text else [])


def tool_definitions(tools: Sequence[Mapping[str, Any]]) -> str:
    """The tools of a run, each with `name`, `description` and `parameters`: `gen_ai.tool.definitions`.

    Of tools that are too many, all have their names before any has its parameters.
    """
    whole = [{"type": "function", **each} for each in tools]
    short = [{name: each[name] for name in ("type", "name", "description")} for each in whole]
    names = [{name: each[name] for name in ("type", "name")} for each in whole]
    written = (json.dumps(each, ensure_ascii=False) for each in (whole, _shortened(short, _LENGTHS[-2]), names))
    return next((each for each in written if len(each) <= MAX_TEXT_CHARS), None) or _fitted(names)


def _parts(message: Message) -> list[Json]:
    if isinstance(message, ToolMessage):
        media = [_media(each) for each in message.content or () if isinstance(each, Media)]
        return [{"type": "tool_call_response", "id": message.call_id, "response": message.text}, *media]
    if isinstance(message, AssistantMessage):
        text = [{"type": "text", "content": message.text}] if message.text else []
        return [*text, *(_call(call.id, call.name, call.arguments) for call in message.tool_calls)]
    if message.content is None:
        return [{"type": "text", "content": message.text}]
    return [
        {"type": "text", "content": each.text} if isinstance(each, TextPart) else _media(each)
        for each in message.content
    ]


def _call(call_id: str, name: str, arguments: str) -> Json:
    """A call. Arguments that are no JSON, or no object, are the text that the model wrote."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": value}


def _media(part: Media) -> Json:
    """An image, a file or a recording, without its bytes: by its URL, or by the digest of its bytes."""
    about: Json = {"mime_type": part.media_type, "modality": part.type}
    return (
        {"type": "uri", **about, "uri": part.url}
        if part.url
        else {"type": "file", **about, "file_id": part.digest or ""}
    )


def _fitted(entries: list[Json], note: str = "") -> str:
    """The entries as JSON of at most `MAX_TEXT_CHARS` characters. `note`: what the entries are that are left out."""
    for length in (MAX_TEXT_CHARS, *_LENGTHS):
        written = json.dumps(_shortened(entries, length), ensure_ascii=False)
        if len(written) <= MAX_TEXT_CHARS:
            return written
    left, short = 0, _shortened(entries, _LENGTHS[-1])
    sizes = [len(json.dumps(each, ensure_ascii=False)) + 2 for each in short]
    size = sum(sizes) + 200
    while size > MAX_TEXT_CHARS and left < len(short):
        size -= sizes[left]
        left += 1
    about = (
        [{"role": "user", "parts": [{"type": "text", "content": f"[{left:,} {note} are left out.]"}]}] if note else []
    )
    return json.dumps([*about, *short[left:]], ensure_ascii=False)


def _shortened(value: Any, length: int) -> Any:
    """The value with each text in at most `length` characters, and a note of how much is left out."""
    if isinstance(value, str):
        return cut_text(str(well_formed(value)), length)
    if isinstance(value, list):
        return [_shortened(each, length) for each in value]
    if isinstance(value, dict):
        return {str(well_formed(name)): _shortened(each, length) for name, each in value.items()}
    return value
