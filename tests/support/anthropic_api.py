"""Anthropic's Messages API, for the scripted server: what it refuses, and its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.openai_stream import cut, piece_of
from tests.support.openai_turn import Turn, calls_with_ids, made_up
from tests.support.zoo.openai_rules import check_authorization

PATH = "/v1/messages"
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


class AnthropicApi:
    """The API. `limits`: the largest `max_tokens` of models. `samplers`: the models that take settings of sampling."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.samplers: set[str] = set()

    def serves(self, path: str, headers: Mapping[str, str]) -> bool:
        return path == PATH

    def model(self, path: str, body: Mapping[str, Any]) -> str:
        return str(body.get("model", ""))

    def conversation(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The turns, each with its text as `content`."""
        messages = body.get("messages")
        turns = []
        for message in messages if isinstance(messages, list) else []:
            blocks = (
                message["content"] if isinstance(message.get("content"), list) else [{"text": message.get("content")}]
            )
            turns.append({**message, "content": [block for block in blocks if isinstance(block, dict)]})
        return turns

    def nth(self, body: Mapping[str, Any]) -> int:
        return sum(1 for turn in self.conversation(body) if turn.get("role") == "assistant")

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def check(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> None:
        # anthropic takes a second to import: only a process that asks the API for something imports it.
        from tests.support.zoo.anthropic_rules import check_messages_request

        if not headers.get("x-api-key"):
            check_authorization(headers.get("authorization"))
        check_messages_request(headers, body, self.limits, self.samplers)

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"type": "error", "error": {"type": ERROR_TYPES.get(status, "api_error"), "message": message}}

    def reply(self, turn: Turn, path: str, body: Mapping[str, Any], seed: str) -> dict[str, Any]:
        """The turn as a message. Arguments that are no object are sent as a text: the API would never send them whole."""
        content: list[dict[str, Any]] = []
        for thought in turn.reasoning:
            text = "\n".join(thought.summary)
            if text:
                content.append({"type": "thinking", "thinking": text, "signature": signature_of(text)})
            else:
                content.append({"type": "redacted_thinking", "data": made_up("red_", seed)})
        if turn.text:
            content.append({"type": "text", "text": turn.text, "citations": None})
        for name, arguments, call_id in calls_with_ids(turn, seed):
            block = {"type": "tool_use", "id": call_id, "name": name, "input": _object(arguments)}
            content.append({**block, "caller": {"type": "direct"}})
        stop = "refusal" if turn.refusal is not None else STOP_REASONS[turn.finished]
        details = {"type": "refusal", "category": "cyber", "explanation": turn.refusal} if turn.refusal else None
        return {
            "id": made_up("msg_", seed),
            "type": "message",
            "role": "assistant",
            "model": turn.model or body["model"],
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "stop_details": details,
            "usage": _usage(turn),
        }

    def events(self, turn: Turn, reply: dict[str, Any], seed: str) -> list[dict[str, Any] | str]:
        """The message as its events."""
        start = {**reply, "content": [], "stop_reason": None, "stop_details": None}
        start["usage"] = {**reply["usage"], "output_tokens": min(1, reply["usage"].get("output_tokens", 0))}
        events: list[dict[str, Any] | str] = [{"type": "message_start", "message": start}, {"type": "ping"}]
        written = [arguments for _, arguments, _ in calls_with_ids(turn, seed)]
        for index, block in enumerate(reply["content"]):
            empty: dict[str, Any] = {name: "" for name in ("text", "thinking", "signature") if name in block}
            if block["type"] == "tool_use":
                empty = {"input": {}}
            events.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
            for delta in _deltas(block, written, piece_of(reply)):
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        end = {name: reply[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        usage = {name: reply["usage"].get(name) for name in ("output_tokens", "output_tokens_details")}
        events.append({"type": "message_delta", "delta": end, "usage": {**usage, "input_tokens": None}})
        return [*events, {"type": "message_stop"}]


def signature_of(thinking: str) -> str:
    """The signature of a text of thinking."""
    return made_up("sig_", thinking)


def _deltas(block: dict[str, Any], written: list[str], piece: int) -> list[dict[str, Any]]:
    if block["type"] == "text":
        return [{"type": "text_delta", "text": part} for part in cut(block["text"], piece)]
    if block["type"] == "thinking":
        thinking = [{"type": "thinking_delta", "thinking": part} for part in cut(block["thinking"], piece)]
        return [*thinking, {"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "tool_use":
        parts = cut(written.pop(0), piece)
        return [{"type": "input_json_delta", "partial_json": part} for part in ("", *parts)]
    return []


def _object(arguments: str) -> Any:
    try:
        parsed = json.loads(arguments or "{}")
        json.dumps(parsed, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _usage(turn: Turn) -> dict[str, Any]:
    usage = turn.usage
    if usage is None:
        return {}
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
