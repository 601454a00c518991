"""Amazon Bedrock's Converse API, for the scripted server: what it refuses, and its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from tests.support.aws_event_stream import aws_frame
from tests.support.openai_shapes import Refusal
from tests.support.openai_stream import cut, piece_of
from tests.support.openai_turn import Turn, calls_with_ids
from tests.support.zoo.bedrock_rules import check_converse

PATH = re.compile(r"/model/([^/]+)/(converse|converse-stream)")
STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "content_filtered",
}


class BedrockApi:
    """The API. Its streams are binary."""

    def serves(self, path: str, headers: Mapping[str, str]) -> bool:
        return PATH.fullmatch(path) is not None

    def model(self, path: str, body: Mapping[str, Any]) -> str:
        found = PATH.fullmatch(path)
        return unquote(found[1]) if found else ""

    def conversation(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages."""
        messages = body.get("messages")
        return list(messages) if isinstance(messages, list) else []

    def nth(self, body: Mapping[str, Any]) -> int:
        return sum(1 for message in self.conversation(body) if message.get("role") == "assistant")

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return path.endswith("-stream")

    def check(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> None:
        if not headers.get("authorization", "").startswith("AWS4-HMAC-SHA256"):
            raise Refusal("Missing Authentication Token", None, None, 403)
        check_converse(body)

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"message": message}

    def reply(self, turn: Turn, path: str, body: Mapping[str, Any], seed: str) -> dict[str, Any]:
        """The turn as a response."""
        content: list[dict[str, Any]] = [{"text": turn.text}] if turn.text else []
        for name, arguments, call_id in calls_with_ids(turn, seed):
            called = {"toolUseId": call_id, "name": name, "input": json.loads(arguments)}
            content.append({"toolUse": called})
        counted = turn.usage
        usage = {
            "inputTokens": counted.input_tokens if counted else 0,
            "outputTokens": counted.output_tokens if counted else 0,
            "totalTokens": counted.input_tokens + counted.output_tokens if counted else 0,
        }
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": STOP_REASONS[turn.finished],
            "usage": usage,
            "metrics": {"latencyMs": 1},
        }

    def events(self, turn: Turn, reply: dict[str, Any], seed: str) -> list[bytes]:
        """The response as its binary events."""
        events = [aws_frame("messageStart", {"role": "assistant"})]
        for index, block in enumerate(reply["output"]["message"]["content"]):
            at = {"contentBlockIndex": index}
            if "toolUse" in block:
                named = {name: block["toolUse"][name] for name in ("toolUseId", "name")}
                events.append(aws_frame("contentBlockStart", {"start": {"toolUse": named}, **at}))
                pieces: list[dict[str, Any]] = [
                    {"toolUse": {"input": part}} for part in cut(json.dumps(block["toolUse"]["input"]), 7)
                ]
            else:
                pieces = [{"text": part} for part in cut(block["text"], piece_of(reply))]
            events += [aws_frame("contentBlockDelta", {"delta": piece, **at}) for piece in pieces]
            events.append(aws_frame("contentBlockStop", at))
        events.append(aws_frame("messageStop", {"stopReason": reply["stopReason"]}))
        return [*events, aws_frame("metadata", {"usage": reply["usage"], "metrics": reply["metrics"]})]
