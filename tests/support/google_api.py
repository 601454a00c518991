"""Gemini's `generateContent`, for the scripted server: what it refuses, and its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from tests.support.openai_shapes import Refusal
from tests.support.openai_stream import cut, piece_of
from tests.support.openai_turn import Turn, calls_with_ids, made_up

PATH = re.compile(r"/v1(?:beta)?/models(?:/([^/:]+):(generateContent|streamGenerateContent))?")
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
}
REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}

DATA = {
    "text",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
} | {*("toolCall", "toolResponse", "futureWork")}
"""The fields of a part that its signature covers."""


FREE = ("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema")
"""The fields with JSON whose names are not the API's."""


class GoogleApi:
    """The API. `families`: models by their names in the tests, such as `m` for `gemini-2.5-flash`."""

    def __init__(self) -> None:
        self.families: dict[str, str] = {}
        self.takes_underscores = False
        """Whether the names of fields may have underscores, as the API itself takes them, and LiteLLM writes them."""

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request with the API's names of fields."""
        return cast(dict[str, Any], _in_camel_case(body)) if self.takes_underscores else body

    def serves(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether the request is for this API. OpenAI's list of models has the same path."""
        return PATH.fullmatch(path) is not None and (bool(self.model(path, {})) or "x-goog-api-key" in headers)

    def model(self, path: str, body: Mapping[str, Any]) -> str:
        found = PATH.fullmatch(path)
        return str(found[1]) if found and found[1] else ""

    def conversation(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The contents, each with its parts as `content`."""
        contents = body.get("contents")
        return [
            {**content, "content": content.get("parts")}
            for content in (contents if isinstance(contents, list) else [])
            if isinstance(content, dict)
        ]

    def nth(self, body: Mapping[str, Any]) -> int:
        return sum(1 for content in self.conversation(body) if content.get("role") == "model")

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return path.endswith(":streamGenerateContent")

    def check(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> None:
        # The package takes a while to import: only a process that asks the API for something imports it.
        from tests.support.zoo.google_rules import check_generate_request

        if not headers.get("x-goog-api-key"):
            raise Refusal("Method doesn't allow unregistered callers.", None, None, 403)
        model = self.model(path, body)
        if model:
            check_generate_request(self.families.get(model, model), body)

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"code": status, "message": message, "status": STATUSES.get(status, "UNAVAILABLE")}}

    def reply(self, turn: Turn, path: str, body: Mapping[str, Any], seed: str) -> dict[str, Any]:
        """The turn as a response. Arguments that are no object are sent as a text: a gateway does that, the API itself not."""
        usage = _usage(turn)
        about = {"modelVersion": turn.model or self.model(path, body), "responseId": made_up("", seed), **usage}
        if turn.refusal is not None or (turn.finished == "content_filter" and not turn.text):
            return {**about, "promptFeedback": {"blockReason": "SAFETY"}}
        parts: list[dict[str, Any]] = []
        for thought in turn.reasoning:
            parts.append({"text": "\n".join(thought.summary) or "Hm.", "thought": True})
        if turn.text:
            parts.append({"text": turn.text})
        for name, arguments, call_id in calls_with_ids(turn, seed):
            parts.append({"functionCall": {"id": call_id, "name": name, "args": _object(arguments)}})
        signed = next((part for part in parts if "functionCall" in part), parts[-1] if parts else None)
        if turn.reasoning and signed is not None:
            signed["thoughtSignature"] = signature_of(signed)
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": REASONS[turn.finished], "index": 0}
        return {**about, "candidates": [candidate]}

    def events(self, turn: Turn, reply: dict[str, Any], seed: str) -> list[dict[str, Any] | str]:
        """The response as its chunks. A signature comes with the last piece of a text."""
        if "candidates" not in reply:
            return [reply]
        [candidate] = reply["candidates"]
        about = {name: reply[name] for name in ("modelVersion", "responseId")}
        chunks: list[dict[str, Any] | str] = []
        for part in candidate["content"]["parts"]:
            if "text" not in part:
                pieces = [part]
            else:
                pieces = [{**part, "text": piece} for piece in cut(part["text"], piece_of(reply))]
                for piece in pieces:
                    piece.pop("thoughtSignature", None)
                if "thoughtSignature" in part:
                    empty = {"text": ""}
                    pieces.append({**empty, "thoughtSignature": signature_of(empty)})
            for piece in pieces:
                chunks.append({**about, "candidates": [{"content": {"role": "model", "parts": [piece]}, "index": 0}]})
        last = {"content": {"role": "model", "parts": []}, "finishReason": candidate["finishReason"], "index": 0}
        usage = {"usageMetadata": reply["usageMetadata"]} if "usageMetadata" in reply else {}
        return [*chunks, {**about, "candidates": [last], **usage}]


def _in_camel_case(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_camel_case(each) for each in value]
    if not isinstance(value, dict):
        return value
    names = {name: re.sub("_([a-z])", lambda found: found[1].upper(), name) for name in value}
    return {new: value[old] if new in FREE else _in_camel_case(value[old]) for old, new in names.items()}


def signature_of(part: Mapping[str, Any]) -> str:
    """The signature of a part, which is that of its data."""
    data = {name: value for name, value in part.items() if name in DATA}
    if "functionCall" in data:
        data["functionCall"] = {name: value for name, value in data["functionCall"].items() if name != "id"}
    return made_up("sig", json.dumps(data, sort_keys=True))


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
        "usageMetadata": {
            "promptTokenCount": usage.input_tokens,
            "cachedContentTokenCount": usage.cached_input_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        }
    }
