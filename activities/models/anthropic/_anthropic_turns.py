"""A conversation in the form of Anthropic's Messages API: turns of user and assistant that alternate.

Each message is written once (`encode`), as a turn of its own; `merge` joins adjacent turns of one role, as the API wants the
results of parallel calls, and what people say after them, in one turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mulligan.activities.models._hosted_work import text_with_description
from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models._legal_calls import NO_RESULT, legal_id, legal_name, legal_object, said
from mulligan.activities.models.anthropic._anthropic_blocks import more_of_call, sent_block
from mulligan.content import Media, Part
from mulligan.values import AssistantMessage, Message, ToolMessage, UserMessage

CONTINUE = "Continue."
"""The user's turn where the API requires one and the conversation has none: before its first turn, between two answers, and
after the last answer, which the API would continue otherwise."""
THINKING = ("thinking", "redacted_thinking")
LOOK_BACK = 8
"""Results in a turn from which it, with its calls, may have more than the 20 blocks that the API looks back for what it has
cached."""
_CACHED = ',"cache_control":{"type":"ephemeral"}}'
_USER, _ASSISTANT, _END = '{"role":"user","content":[', '{"role":"assistant","content":[', "]}"


@dataclass
class AnthropicTurn:
    """A turn: its role, and its blocks as JSON, each part one or several of them."""

    role: str
    parts: list[str]

    def to_json(self) -> str:
        """The turn as the API wants it."""
        return f"{_USER if self.role == 'user' else _ASSISTANT}{','.join(self.parts)}{_END}"

    @property
    def has_thinking(self) -> bool:
        """Whether the turn has a block of thinking."""
        return self.role == "assistant" and any(f'"type":"{kind}"' in part for part in self.parts for kind in THINKING)

    @property
    def begins_with_thinking(self) -> bool:
        """Whether the turn's first block is thinking."""
        return self.parts[0].startswith(tuple(f'{{"type":"{kind}"' for kind in THINKING))


def encode(message: Message, data_key: str) -> list[str]:
    """The message as a turn, as JSON; nothing for an answer with neither text nor calls, which the API would refuse.

    Args:
        message: The message.
        data_key: The key of `provider_data` for the endpoint.
    """
    match message:
        case UserMessage():
            return [_turn(_USER, _content(message))]
        case ToolMessage():
            return [_turn(_USER, [_result(message)])]
        case AssistantMessage():
            blocks = _answer(message, data_key)
            return [_turn(_ASSISTANT, blocks)] if blocks else []


def merge(items: Sequence[str], *, with_thinking: bool = True) -> list[AnthropicTurn]:
    """The turns of a conversation from its encoded messages: they alternate, and the first and the last are the user's.

    Args:
        items: What `encode` returned, in order.
        with_thinking: Whether blocks of thinking are kept.
    """
    turns: list[AnthropicTurn] = []
    for item in items:
        role = "user" if item.startswith(_USER) else "assistant"
        part = item[len(_USER if role == "user" else _ASSISTANT) : -len(_END)]
        if role == "assistant" and not with_thinking:
            part = _without_thinking(part)
        if turns and turns[-1].role == role == "user":
            turns[-1].parts.append(part)
            continue
        if (turns[-1].role if turns else "assistant") == role:
            turns.append(AnthropicTurn("user", [to_json(_text(CONTINUE))]))
        turns.append(AnthropicTurn(role, [part]))
    if not turns or turns[-1].role == "assistant":
        turns.append(AnthropicTurn("user", [to_json(_text(CONTINUE))]))
    for turn in turns:
        if turn.role == "user":  # the API wants the results before anything else
            turn.parts.sort(key=lambda part: not part.startswith('{"type":"tool_result"'))
    return turns


def paused_turn(blocks: Sequence[dict[str, Any]]) -> AnthropicTurn:
    """The turn of an answer that the API has paused, and continues where it is the last turn of a request.

    Args:
        blocks: The blocks of the answer.
    """
    sent = (
        {name: value for name, value in block.items() if value is not None or name not in ("citations", "caller")}
        for block in blocks
        if block.get("type") != "text" or block.get("text")
    )
    return AnthropicTurn("assistant", [to_json(block) for block in sent])


def mark_for_cache(turns: list[AnthropicTurn]) -> None:
    """Mark where the previous request ended, if the API would not look back so far for what it has cached."""
    users = [turn for turn in turns if turn.role == "user"]
    if len(users) > 1 and len(users[-1].parts) >= LOOK_BACK:
        parts = users[-2].parts
        parts[-1] = parts[-1][:-1] + _CACHED


def mark_end(turns: Sequence[AnthropicTurn], mark: Any) -> None:
    """Mark the end of the request for the cache, where the API does not do so itself."""
    parts = turns[-1].parts
    parts[-1] = f'{parts[-1][:-1]},"cache_control":{to_json(mark)}}}'


def called_tools(items: Sequence[str]) -> list[str]:
    """The names of the tools that the conversation's calls name, each once."""
    blocks = [block for item in items if item.startswith(_ASSISTANT) for block in json.loads(item)["content"]]
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


def _turn(begin: str, blocks: list[dict[str, Any]]) -> str:
    return f"{begin}{','.join(map(to_json, blocks))}{_END}"


def _content(message: UserMessage) -> list[dict[str, Any]]:
    """The blocks of a user's message."""
    return _blocks(message.content) or [_text(said(message.text))]


def _blocks(parts: Sequence[Part] | None) -> list[dict[str, Any]]:
    """The blocks of parts, without empty texts, which the API refuses."""
    return [
        _media(part) if isinstance(part, Media) else _text(part.text)
        for part in parts or ()
        if isinstance(part, Media) or part.text.strip()
    ]


def _media(part: Media) -> dict[str, Any]:
    source = {"type": "url", "url": part.url}
    if part.url is None:
        source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.type == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, **({"title": part.name} if part.name else {})}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result(message: ToolMessage) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": legal_id(message.call_id)}
    block["content"] = _blocks(message.content) or said(message.text, NO_RESULT)
    if message.error is not None:
        block["is_error"] = True
    return block


def _answer(message: AssistantMessage, data_key: str) -> list[dict[str, Any]]:
    """The text and the calls of an answer, with its thinking and its other blocks, in the order of those in `provider_data`.

    Text and calls that have no place there follow after them.
    """
    data = (message.provider_data or {}).get(data_key)
    calls = _calls(message)
    blocks: list[dict[str, Any]] = []
    remaining_text = text_with_description(message, data_key)
    layout: list[Any] = data if isinstance(data, list) else []
    for block in layout:
        match block:
            case {"type": "thinking", "thinking": str(), "signature": str()} | {
                "type": "redacted_thinking",
                "data": str(),
            }:
                blocks.append(block)
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case {"type": "text"}:
                text = block.get("text", remaining_text)
                more = {name: value for name, value in block.items() if name not in ("type", "text")}
                blocks += [{**each, **more} for each in _texts(text if isinstance(text, str) else "")]
                remaining_text = ""
            case {"type": "tool_use"}:
                blocks += [{**more_of_call(block), **call} for call in islice(calls, 1)]
            case {"type": str()} if (sent := sent_block(block)) is not None:
                blocks.append(sent)
    blocks += [*_texts(remaining_text), *calls]
    while blocks and blocks[-1]["type"] in THINKING:
        blocks.pop()  # the answer was cut off after it: the API refuses thinking that nothing follows
    return blocks


def _texts(text: str) -> list[dict[str, Any]]:
    return [_text(text)] if text.strip() else []


def _calls(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    for call in message.tool_calls:
        arguments = legal_object(call.arguments)
        yield {"type": "tool_use", "id": legal_id(call.id), "name": legal_name(call.name), "input": arguments}


def _without_thinking(part: str) -> str:
    blocks = [block for block in json.loads(f"[{part}]") if block["type"] not in THINKING]
    return ",".join(map(to_json, blocks))
