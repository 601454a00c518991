"""One turn of a scripted model, independent of the provider, and its form in each endpoint of OpenAI."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.openai_stream import Break

Call = tuple[str, str] | tuple[str, str, str | None]
CREATED = 1_700_000_000  # repeated requests get equal responses


@dataclass(frozen=True)
class Usage:
    """Token counts, with Mulligan's names."""

    input_tokens: int = 10
    output_tokens: int = 5
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True)
class Reasoning:
    """A reasoning item; `extras` are fields of the output only, which are refused in an input."""

    summary: Sequence[str] = ("I thought about it.",)
    id: str | None = None
    encrypted_content: str | None = None
    content: Sequence[str] | None = None
    extras: Mapping[str, Any] = field(default_factory=lambda: {"status": "completed"})


@dataclass(frozen=True)
class Failure:
    """A failure instead of an answer. A text as `body` is sent unchanged; `status=200` sends an invalid success.

    `drop` closes the connection instead: before answering, or in the middle of the body.
    """

    status: int = 500
    body: Mapping[str, Any] | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: Literal["before", "in_body"] | None = None
    delay: float = 0
    wait: asyncio.Event | None = None

    def json(self) -> dict[str, Any]:
        """The body, or OpenAI's error JSON for the status."""
        if isinstance(self.body, Mapping):
            return dict(self.body)
        kind = {429: "rate_limit_exceeded", 401: "invalid_request_error", 400: "invalid_request_error"}
        told = {"message": f"scripted failure {self.status}", "type": kind.get(self.status, "server_error")}
        return {"error": {**told, "param": None, "code": None}}


@dataclass(frozen=True)
class Turn:
    """One answer of the model. `calls` are (name, raw arguments, id or None for a generated one).

    `failure` is for every attempt, `fail_first` for the first attempts of each conversation. `delay` (seconds) and
    `wait` (an event) delay the answer, on every attempt without a failure.
    """

    text: str | None = None
    calls: Sequence[Call] = ()
    finish_reason: Literal["stop", "tool_calls", "length", "content_filter"] | None = None
    refusal: str | None = None
    reasoning: Sequence[Reasoning] = ()
    usage: Usage | None = Usage()
    failure: Failure | None = None
    fail_first: Sequence[Failure] = ()
    delay: float = 0
    wait: asyncio.Event | None = None
    model: str | None = None  # the name in the response, if it is not the requested one
    tier: str = "default"  # the service tier in the response
    pace: float = 0  # seconds between two pieces of a streamed answer
    gates: Mapping[int, asyncio.Event] = field(
        default_factory=dict
    )  # a stream waits for the event before the piece of that number
    break_first: Sequence[Break] = ()  # interruptions of the first streams of each conversation
    events: Sequence[dict[str, Any] | str | bytes] | None = None  # events that are streamed instead, unchanged
    whole_only: bool = False  # streaming is refused
    background_ends: Sequence[str] = ()  # how the first background responses of each conversation end

    @property
    def finished(self) -> str:
        """The finish reason: stated, or the usual one."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


def chat_reply(turn: Turn, request: Mapping[str, Any], seed: str) -> dict[str, Any]:
    """The turn as a chat completion; the ids are derived from `seed`, so they are equal for the same conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text, "refusal": turn.refusal, "annotations": []}
    if turn.calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, call_id in calls_with_ids(turn, seed)
        ]
    reply: dict[str, Any] = {
        "id": made_up("chatcmpl-", seed),
        "object": "chat.completion",
        "created": CREATED,
        "model": turn.model or request["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": turn.finished}],
        "service_tier": turn.tier,
        "system_fingerprint": "fp_test",
    }
    if turn.usage:
        reply["usage"] = {
            "prompt_tokens": turn.usage.input_tokens,
            "completion_tokens": turn.usage.output_tokens,
            "total_tokens": turn.usage.input_tokens + turn.usage.output_tokens,
            "prompt_tokens_details": {
                "cached_tokens": turn.usage.cached_input_tokens,
                "cache_write_tokens": turn.usage.cache_write_tokens,
                "audio_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": turn.usage.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
    return reply


def responses_reply(turn: Turn, request: Mapping[str, Any], seed: str) -> dict[str, Any]:
    """The turn as a response of the Responses API."""
    cut_off = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(turn.finished)
    return {
        "id": made_up("resp_", seed),
        "object": "response",
        "created_at": CREATED,
        "completed_at": None if cut_off else CREATED,
        "status": "incomplete" if cut_off else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut_off} if cut_off else None,
        "instructions": request.get("instructions"),
        "max_output_tokens": request.get("max_output_tokens"),
        "max_tool_calls": request.get("max_tool_calls"),
        "model": turn.model or request["model"],
        "output": output_items(turn, seed, cut_off is not None),
        "parallel_tool_calls": request.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt_cache_key": request.get("prompt_cache_key"),
        "reasoning": request.get("reasoning") or {"effort": None, "summary": None},
        "safety_identifier": request.get("safety_identifier"),
        "service_tier": turn.tier,
        "store": False,
        "temperature": request.get("temperature", 1.0),
        "text": request.get("text") or {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": request.get("tool_choice", "auto"),
        "tools": request.get("tools") or [],
        "top_logprobs": 0,
        "top_p": request.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": responses_usage(turn.usage),
        "user": request.get("user"),
        "metadata": request.get("metadata") or {},
    }


def output_items(turn: Turn, seed: str, cut_off: bool) -> list[dict[str, Any]]:
    """The items of a response: reasoning, then the text, then the calls; if truncated, the last one is incomplete."""
    items: list[dict[str, Any]] = []
    for index, thought in enumerate(turn.reasoning):
        item_id = thought.id or made_up("rs_", seed, index)
        item: dict[str, Any] = {"id": item_id, "type": "reasoning"}
        item["summary"] = [{"type": "summary_text", "text": text} for text in thought.summary]
        if thought.content is not None:
            item["content"] = [{"type": "reasoning_text", "text": text} for text in thought.content]
        item["encrypted_content"] = thought.encrypted_content or made_up("gAAAAA", item_id)
        items.append({**item, **thought.extras})
    parts: list[dict[str, Any]] = []
    if turn.text is not None:
        parts.append({"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []})
    if turn.refusal is not None:
        parts.append({"type": "refusal", "refusal": turn.refusal})
    if parts:
        message = {"id": made_up("msg_", seed), "type": "message", "role": "assistant", "content": parts}
        items.append({**message, "status": "completed"})
    for index, (name, arguments, call_id) in enumerate(calls_with_ids(turn, seed)):
        call = {"id": made_up("fc_", seed, index), "type": "function_call", "call_id": call_id}
        items.append({**call, "name": name, "arguments": arguments, "status": "completed"})
    if cut_off and items and items[-1]["type"] != "reasoning":
        items[-1]["status"] = "incomplete"
    return items


def responses_usage(usage: Usage | None) -> dict[str, Any] | None:
    """Token counts with the names of the Responses API."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def calls_with_ids(turn: Turn, seed: str) -> list[tuple[str, str, str]]:
    """The calls, each with its scripted id, valid or not, or a generated one."""
    calls = []
    for index, (name, arguments, *given) in enumerate(turn.calls):
        call_id = given[0] if given and given[0] is not None else made_up("call_", seed, index)
        calls.append((name, arguments, call_id))
    return calls


def made_up(prefix: str, *seed: object) -> str:
    """An id in OpenAI's form, derived from the seed."""
    return prefix + hashlib.sha256(json.dumps([prefix, *seed]).encode()).hexdigest()[:24]
