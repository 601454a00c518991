"""The ids of calls as their endpoint has given them: it gets them back so, and any other the ids that they have here.

Gemini's gateways write signatures into them, Kimi's template shows them, and MiniMax looks them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from mulligan.activities.models._legal_calls import legal_id
from mulligan.values import AssistantMessage, Message, ToolCall
from mulligan.wire.shorten import json_size

PREFIX = "ids:"
"""The key in a message's `provider_data` is this and the endpoint's."""
MOST_BYTES = 100_000
"""Of the ids of one answer that are kept."""


def kept_ids(endpoint: str, written: Sequence[ToolCall], calls: Sequence[ToolCall]) -> dict[str, JsonValue]:
    """What is kept in the message of an answer: the ids that are others here.

    Args:
        endpoint: The endpoint's key in `provider_data`; "": it needs none.
        written: The calls as the endpoint has sent them.
        calls: The same calls as they are here.
    """
    pairs = zip(written, calls, strict=False)
    ids: dict[str, JsonValue] = {call.id: own.id for own, call in pairs if own.id and own.id != call.id}
    return {f"{PREFIX}{endpoint}": ids} if endpoint and ids and json_size(ids) <= MOST_BYTES else {}


def own_ids(messages: Iterable[Message], endpoint: str) -> dict[str, str]:
    """The ids as an endpoint has given them, by those that its items have. One that was given twice is used once.

    Args:
        messages: The messages of a conversation.
        endpoint: The endpoint's key in `provider_data`.
    """
    key, ids = f"{PREFIX}{endpoint}", dict[str, str]()
    answers = [each for each in messages if isinstance(each, AssistantMessage)]
    if not [each for each in answers if each.provider_data and key in each.provider_data]:
        return ids
    calls: list[tuple[str, object]] = []
    for message in answers:
        kept = (message.provider_data or {}).get(key)
        calls += [
            (legal_id(each.id), kept.get(each.id) if isinstance(kept, dict) else None) for each in message.tool_calls
        ]
    taken = {call_id for call_id, own in calls if own is None}
    for call_id, own in calls:
        if isinstance(own, str) and own not in taken:
            ids[call_id] = own
            taken.add(own)
    return ids
