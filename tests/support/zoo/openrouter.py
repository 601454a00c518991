"""OpenRouter before Mistral: comments keep the stream alive, reasoning has entries, and an upstream's words are in `metadata`."""

from __future__ import annotations

import json

from tests.support.openai_stream import Event
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member

ENTRY = {
    "type": "reasoning.text",
    "text": "Let me see.",
    "signature": "c2ln",
    "format": "anthropic-claude-v1",
    "index": 0,
}


def says(message: str, status: int) -> Json:
    raw = json.dumps({"object": "error", "message": message, "type": "invalid_request_message_order", "code": "3230"})
    told = {"message": "Provider returned error", "code": status, "metadata": {"raw": raw, "provider_name": "Mistral"}}
    return {"error": told, "user_id": "user_1"}


def stream(answer: Json) -> list[Event]:
    """The entry comes in three pieces."""

    def cut(entries: list[Json]) -> list[list[Json]]:
        more = {name: ENTRY[name] for name in ("type", "format", "index")}
        begin, end = str(entries[0]["text"])[:4], str(entries[0]["text"])[4:]
        return [[{**more, "text": begin}], [{**more, "text": end}], [{**more, "text": "", "signature": "c2ln"}]]

    comment = b": OPENROUTER PROCESSING\n\n"
    events = streams.extra_pieces("reasoning_details", cut)(answer)
    return [comment, comment, *events[:2], comment, *events[2:]]


MEMBER = Member(
    name="openrouter",
    sources=[
        "https://github.com/charmbracelet/crush/issues/279 (an upstream's refusal)",
        "https://github.com/cline/cline/issues/6772 (reasoning_details)",
        "https://github.com/agno-agi/agno/issues/8802 (their pieces)",
    ],
    rules=[
        rules.after("tool", "user"),
        rules.comes_back(
            "reasoning_details", lambda entries: entries == [ENTRY], "Invalid `signature` in `thinking` block"
        ),
    ],
    says=says,
    answers=streams.with_field("reasoning_details", [ENTRY]),
    streams=stream,
)
