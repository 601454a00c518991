"""The ids of calls as their endpoint has given them: it gets them back so, and any other the ids that they have here.

Gemini's gateways write signatures into them, Kimi's template shows them, and MiniMax looks them up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models._legal_calls import legal_id
from mulligan.values import AssistantMessage, Message, ToolCall
from mulligan.wire.shorten import json_size

PREFIX = "ids:"
"""The key in a message's `provider_data` is this and the endpoint's."""
MOST_BYTES = 100_000
"""Of the ids of one answer that are kept."""
LEGAL_IDS = "legal_ids"
"""The word for models that refuse the ids which their endpoint has given to the calls of another of its models."""
_FIELDS = {
    "function_call": "call_id",
    "function_call_output": "call_id",
    "tool_search_call": "call_id",
    "tool_search_output": "call_id",
    "tool_use": "id",
    "tool_result": "tool_use_id",
}
"""Where the Responses API's items of a call and its result, and Anthropic's blocks, have the call's id."""


def kept_ids(endpoint: str, written: Sequence[ToolCall], calls: Sequence[ToolCall]) -> dict[str, JsonValue]:
    """What is kept in the message of an answer: the ids that are others here.

    Args:
        endpoint: The endpoint's key in `provider_data`; "": it needs none.
        written: The calls as the endpoint has sent them.
        calls: The same calls as they are here.
    """
    pairs = zip(written, calls, strict=False)
    ids: dict[str, JsonValue] = {
        call.id: own.id for own, call in pairs if own.id and own.id != call.id and _can_be_sent(own.id)
    }
    return {f"{PREFIX}{endpoint}": ids} if endpoint and ids and json_size(ids) <= MOST_BYTES else {}


def _can_be_sent(written: str) -> bool:
    """Whether an id has no half of a surrogate pair, which JSON can have and UTF-8 cannot."""
    return written.encode(errors="ignore").decode() == written


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


def with_own_ids(items: Sequence[str], ids: Mapping[str, str]) -> list[str]:
    """The items of a conversation in the Responses API, or the turns of one in Anthropic's, with the endpoint's own ids.

    Args:
        items: The items, as JSON.
        ids: The result of `own_ids`.
    """
    if not ids:
        return list(items)
    return [to_json(_with_ids(json.loads(item), ids)) if _may_have_id(item) else item for item in items]


def _may_have_id(item: str) -> bool:
    return any(f'"type":"{kind}"' in item for kind in _FIELDS)


def _with_ids(item: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    content = item.get("content")
    if "type" not in item and isinstance(content, list):
        return {**item, "content": [_with_ids(block, ids) for block in content]}
    field = _FIELDS.get(str(item.get("type")))
    return item if field is None else {**item, field: ids.get(item[field], item[field])}
