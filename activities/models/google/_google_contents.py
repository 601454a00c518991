"""A conversation in the form of Gemini's API: contents of user and model, and thought signatures in their places.

Each message is written once (`encode`); `merge` joins the results of parallel calls, as the API wants them in one content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from mulligan.activities.models._hosted_work import text_with_description
from mulligan.activities.models._json_fields import results_first, to_json
from mulligan.activities.models._legal_calls import MAX_NAME_CHARS, NO_RESULT, legal_id, legal_name, legal_object, said
from mulligan.activities.models.google._google_parts import sent_part
from mulligan.content import Media, Text, media_of
from mulligan.values import AssistantMessage, Message, ToolMessage, UserMessage

CONTINUE = "Continue."
"""The user's content where the API requires one and the conversation has none."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""Google's value for calls whose signature does not exist, as another provider's model made them: from Gemini 3 on, the API
refuses a call without one."""
_UNSIGNED = f'"thoughtSignature":"{NO_SIGNATURE}",'
_SIGNATURE = re.compile(r'"thoughtSignature":"[^"\\]*"')
_USER, _MODEL, _END = '{"role":"user","parts":[', '{"role":"model","parts":[', "]}"
_RESULT = '{"functionResponse":'
_OF_TEXT = frozenset({"text", "thought", "thoughtSignature"})
"""The fields of a part that is a text or a thought."""


def google_name(name: str) -> str:
    """The name of a function as the API accepts it: it must begin with a letter or an underscore."""
    name = legal_name(name)
    return name if re.match("[A-Za-z_]", name) else f"_{name[: MAX_NAME_CHARS - 1]}"


def encode(message: Message, data_key: str) -> list[str]:
    """The message as a content, as JSON; nothing for an answer with neither text nor calls, which the API would refuse.

    Args:
        message: The message.
        data_key: The key of `provider_data` for the endpoint.
    """
    match message:
        case UserMessage():
            return [_content(_USER, _parts(message))]
        case ToolMessage():
            return [_content(_USER, parts) for parts in _result(message)]
        case AssistantMessage():
            parts = _answer(message, data_key)
            return [_content(_MODEL, parts)] if parts else []


def merge(items: Sequence[str], *, signatures: str) -> list[str]:
    """The contents of a conversation from its encoded messages: the first and the last are the user's.

    Args:
        items: What `encode` returned, in order.
        signatures: `keep`, `replace` by NO_SIGNATURE (of another model), or `optional` (kept; a call needs none).
    """
    merged: list[list[str]] = []
    kinds: list[str] = []
    filler = to_json({"text": CONTINUE})
    for item in results_first(items, result=_USER + _RESULT, user=_USER):
        is_user = item.startswith(_USER)
        part = item[len(_USER if is_user else _MODEL) : -len(_END)]
        kind = "model" if not is_user else "results" if part.startswith(_RESULT) else "user"
        if kinds and kinds[-1] == kind != "model":
            merged[-1].append(part)
            continue
        if kind == "model" and (not kinds or kinds[-1] == "model"):
            kinds.append("user")
            merged.append([filler])
        kinds.append(kind)
        merged.append([part])
    if not kinds or kinds[-1] == "model":
        kinds.append("user")
        merged.append([filler])
    begins = [_MODEL if kind == "model" else _USER for kind in kinds]
    contents = [f"{begin}{','.join(parts)}{_END}" for begin, parts in zip(begins, merged, strict=True)]
    if signatures == "optional":
        return [content.replace(_UNSIGNED, "") for content in contents]
    if signatures == "replace":
        return [_SIGNATURE.sub(_UNSIGNED.rstrip(","), content) for content in contents]
    return contents


def has_signature(items: Sequence[str]) -> bool:
    """Whether the conversation has a thought signature of a model."""
    return any(_SIGNATURE.search(item.replace(_UNSIGNED, "")) for item in items if item.startswith(_MODEL))


def _content(begin: str, parts: list[dict[str, Any]]) -> str:
    return f"{begin}{','.join(map(to_json, parts))}{_END}"


def _parts(message: UserMessage) -> list[dict[str, Any]]:
    if not message.content:
        return [{"text": said(message.text)}]
    return [_media(part) if isinstance(part, Media) else {"text": said(part.text)} for part in message.content]


def _media(part: Media) -> dict[str, Any]:
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


def _result(message: ToolMessage) -> list[list[dict[str, Any]]]:
    """The result of a call; its images and files, which only few models take in it, are the user's after it."""
    field = "output" if message.error is None else "error"
    texts = [part.text if isinstance(part, Text) else f"[{part.label}: it follows]" for part in message.content or ()]
    output = "\n\n".join(texts) if texts else said(message.text, NO_RESULT)
    response = {"id": legal_id(message.call_id), "name": google_name(message.name), "response": {field: output}}
    result = [{"functionResponse": response}]
    media = [_media(part) for part in media_of(message.content)]
    heading = {"text": f"[From the result of {message.name}, call {legal_id(message.call_id)}:]"}
    return [result, [heading, *media]] if media else [result]


def _answer(message: AssistantMessage, data_key: str) -> list[dict[str, Any]]:
    """The text and the calls of an answer, with its signatures, in the order of the parts in `provider_data`.

    Text and calls that have no place there follow after them.
    """
    data = (message.provider_data or {}).get(data_key)
    calls = _calls(message)
    parts: list[dict[str, Any]] = []
    remaining_text = text_with_description(message, data_key)
    layout: list[Any] = data if isinstance(data, list) else []
    for place in layout:
        if not isinstance(place, dict):
            continue
        signature, more = place.get("signature"), _more(place)
        signed = {**more, "thoughtSignature": signature} if isinstance(signature, str) else more
        match place:
            case {"type": "text"}:
                text = place.get("text", remaining_text)
                if signed or (isinstance(text, str) and text):
                    parts.append({**signed, "text": text if isinstance(text, str) else ""})
                remaining_text = ""
            case {"type": "thought", "text": str(thought)}:
                parts.append({**signed, "text": thought, "thought": True})
            case {"type": "call"}:
                parts += [_with_more_of_call(signed, call) for call in islice(calls, 1)]
            case _ if (sent := sent_part(place)) is not None:
                parts.append(sent)
    parts += [{"text": remaining_text}] if remaining_text else []
    parts += calls
    if not any("functionCall" in part or part.get("text", "").strip() or part.keys() - _OF_TEXT for part in parts):
        return []
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None and "thoughtSignature" not in first:
        call = first.pop("functionCall")
        first |= {"thoughtSignature": NO_SIGNATURE, "functionCall": call}
    return parts


def _more(place: dict[str, Any]) -> dict[str, Any]:
    """The fields of a part that Mulligan does not interpret, none of which are its data."""
    more = place.get("more")
    return {name: value for name, value in more.items() if name not in _OF_TEXT} if isinstance(more, dict) else {}


def _with_more_of_call(more: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    of_call = more.get("functionCall")
    function = {**of_call, **call["functionCall"]} if isinstance(of_call, dict) else call["functionCall"]
    return {**more, "functionCall": function}


def _calls(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    for call in message.tool_calls:
        arguments = legal_object(call.arguments)
        yield {"functionCall": {"id": legal_id(call.id), "name": google_name(call.name), "args": arguments}}
