"""What a client sends to an agent: the `input` of a response and the `messages` of a chat, as messages of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from mulligan.run_input import parse_prompt
from mulligan.serve.client_parts import joined_instructions, media_part
from mulligan.serve.json_body import MOST_MESSAGES
from mulligan.serve.openai_api.item_ids import APPROVAL_PREFIX
from mulligan.serve.openai_api.request_fields import invalid
from mulligan.serve.openai_api.response_form import OPENAIS_WORD
from mulligan.serve.problems import Problem
from mulligan.serve.shown_json import shown_json
from mulligan.serve.turn_stream import WaitingCall, parse_waiting_call

SYSTEM = "system"
"""The role of messages that are instructions of the client, which are not part of a conversation."""
_TEXT_PARTS = {"text", "input_text", "output_text", "refusal"}
_MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "file": "file",
    "input_file": "file",
}
_IGNORED = {"reasoning", "mcp_approval_request", "mcp_approval_response", "mcp_list_tools", "compaction"}
_IGNORED |= {"image_generation_call", "mulligan:image"}
"""Items of an earlier response that a client sends back, and that say nothing to another run."""
Json = dict[str, Any]


@dataclass(frozen=True)
class InputReply:
    """A person's reply to a call that waits: `approve` for an approval, otherwise the `text` of an answer."""

    call: WaitingCall
    approve: bool | None = None
    text: str = ""


def input_messages(given: Any) -> list[Json]:
    """The `input` of a response, a text or a list of items, as messages of a run.

    Raises:
        Problem: an item is not one that an agent can read.
    """
    if isinstance(given, str):
        return [_user(given)]
    messages: list[Json] = []
    names: dict[str, str] = {}
    results: list[Json] = []
    """Those of MCP calls, which follow all calls of their message."""
    for number, item in enumerate(_items(given, "input")):
        where = f"input[{number}]"
        kind = _kind(item) or "message"
        match kind:
            case "message":
                messages += [*results, _message(item, where)]
                results = []
            case "mcp_call" | "function_call":
                call_id = str(item.get("call_id") or item.get("id"))
                _add_call(messages, call_id, item)
                names[call_id] = str(item.get("name"))
                if kind == "mcp_call":
                    output = item.get("output") or json.dumps(item.get("error"))
                    results.append(_result(call_id, item.get("name"), output))
            case "function_call_output":
                call_id = str(item.get("call_id"))
                output = _text(item.get("output"), f"{where}.output")
                messages += [*results, _result(call_id, names.get(call_id, ""), output)]
                results = []
            case _ if kind not in _IGNORED:
                raise invalid(where, f'has the type {shown_json(item["type"])}; send messages, as "input_text".')
    return [*messages, *results]


def chat_messages(given: Any) -> list[Json]:
    """The `messages` of a chat as messages of a run.

    Raises:
        Problem: a message is not one that an agent can read.
    """
    messages: list[Json] = []
    names: dict[str, str] = {}
    for number, item in enumerate(_items(given, "messages")):
        where = f"messages[{number}]"
        if item.get("role") == "tool":
            call_id = str(item.get("tool_call_id"))
            messages.append(_result(call_id, names.get(call_id, ""), _text(item.get("content"), f"{where}.content")))
            continue
        message = _message(item, where)
        calls = item.get("tool_calls") or []
        if not isinstance(calls, list):
            raise invalid(f"{where}.tool_calls", f"is {shown_json(calls)}; it must be a list of calls.")
        if message["role"] == "assistant" and calls:
            message["tool_calls"] = [_chat_call(call, f"{where}.tool_calls") for call in calls]
            names |= {call["id"]: call["name"] for call in message["tool_calls"]}
        messages.append(message)
    return messages


def replies(given: Any, *, of_any_run: bool) -> list[InputReply]:
    """The replies to waiting calls in an `input`; none if it has no such items.

    `of_any_run`: whether the request names no run, so that the ids of the calls must do so. The replies are then at the end:
    others, and results of calls without a run, are part of a conversation.

    Raises:
        Problem: there are replies and other items.
    """
    if not isinstance(given, list):
        return []
    _check_length(given, "input")
    read = [_reply(item) if isinstance(item, dict) else None for item in given]
    if of_any_run:
        newest = list(takewhile(lambda reply: reply is not None and reply.call.sub_run, reversed(read)))
        return [reply for reply in reversed(newest) if reply is not None]
    found = [reply for reply in read if reply is not None]
    if found and len(found) < len(given):
        raise invalid("input", "has replies to waiting calls and other items; send the others when the run has ended.")
    return found


def _reply(item: Json) -> InputReply | None:
    match _kind(item):
        case "mcp_approval_response":
            approve, request_id = item.get("approve"), str(item.get("approval_request_id"))
            if not isinstance(approve, bool):
                raise invalid("approve", f"is {shown_json(approve)}; it must be true or false.")
            call = parse_waiting_call(request_id.removeprefix(APPROVAL_PREFIX))
            return InputReply(call, approve, str(item.get("reason") or ""))
        case "function_call_output":
            return InputReply(parse_waiting_call(str(item.get("call_id"))), text=_text(item.get("output"), "output"))
    return None


def _items(given: Any, name: str) -> Sequence[Json]:
    if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
        what = "a text or a list of items" if name == "input" else "a list of messages"
        raise invalid(name, f"is {shown_json(given)}; it must be {what}, and not empty.")
    _check_length(given, name)
    return given


def _check_length(given: Sequence[Any], name: str) -> None:
    if len(given) > MOST_MESSAGES:
        raise invalid(name, f"has {len(given):,} entries; at most {MOST_MESSAGES:,} are allowed.")


def _message(item: Json, where: str) -> Json:
    role, content = item.get("role"), item.get("content")
    media = role == "user" and isinstance(content, list) and any(map(_is_media, content))
    text = "" if media else _text(content, f"{where}.content", may_be_empty=role != "user")
    match role:
        case "user":
            return _user(text) if not media else {"role": "user", "content": _parts(item["content"], where)}
        case "assistant":
            return {"role": "assistant", "text": text}
        case "system" | "developer":
            return {"role": SYSTEM, "text": text}
    raise invalid(f"{where}.role", f"is {shown_json(role)}; it must be user, assistant, system or developer.")


def _text(content: Any, where: str, *, may_be_empty: bool = True) -> str:
    """The text of a message, of which the content is a text or a list of parts."""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "".join(_part_text(part, f"{where}[{number}]") for number, part in enumerate(content))
    elif content is None and may_be_empty:
        text = ""
    else:
        raise invalid(where, f"is {shown_json(content)}; it must be a text or a list of parts.")
    return text


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, dict) and _kind(part) in _TEXT_PARTS:
        text = part.get("text", part.get("refusal"))
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, dict) else part
    raise invalid(where, f"is {shown_json(kind)}; agents read parts of the type text.")


def _kind(item: Json) -> str | None:
    """The type of an item or a part, which may be any JSON, as a text in OpenAI's words; None: it has none."""
    kind = item.get("type")
    if isinstance(kind, str):
        return OPENAIS_WORD.get(kind, kind)
    return None if kind is None else json.dumps(kind)


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and _kind(part) in _MEDIA_PARTS


def _parts(content: list[Any], where: str) -> list[Json]:
    """The parts of a message with images, files or audio, in either API's form."""
    parts: list[Json] = []
    for number, part in enumerate(content):
        at = f"{where}.content[{number}]"
        parts.append(_media_part(part, at) if _is_media(part) else {"type": "text", "text": _part_text(part, at)})
    return parts


def _media_part(part: Json, where: str) -> Json:
    given = part.get(part["type"])
    fields = {**part, **(given if isinstance(given, dict) else {"url": given})}
    name, audio_format = fields.get("filename"), fields.get("format")
    source = next(
        (fields[key] for key in ("file_data", "file_url", "image_url", "url", "data") if fields.get(key)), None
    )
    if isinstance(source, dict):
        source = source.get("url")
    is_url = isinstance(source, str) and source.lower().startswith(("https://", "http://", "data:"))
    if not is_url and not (source and part["type"] == "input_audio"):
        kind = json.dumps(part["type"])
        raise invalid(where, f"is {kind} without a URL or a data URL; files by their id are not known here.")
    media_type = {"wav": "audio/wav", "mp3": "audio/mpeg"}.get(str(audio_format))
    return media_part(_MEDIA_PARTS[part["type"]], source, media_type=media_type, name=name)


def _user(text: str) -> Json:
    return {"role": "user", "text": text}


def _add_call(messages: list[Json], call_id: str, item: Json) -> None:
    """Add a call to the model's message before it, of which it is a part, or as a message of its own."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "text": ""})
    call = {"id": call_id, "name": str(item.get("name")), "arguments": str(item.get("arguments") or "{}")}
    messages[-1].setdefault("tool_calls", []).append(call)


def _chat_call(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise invalid(where, f"has {shown_json(call)}; it must be calls of functions.")
    return {"id": str(call.get("id")), "name": str(function.get("name")), "arguments": str(function.get("arguments"))}


def _result(call_id: str, name: Any, text: str) -> Json:
    return {"role": "tool", "call_id": call_id, "name": str(name), "text": text}


def joined_prompt(messages: Sequence[Json]) -> Any:
    """The user's messages as one prompt.

    Raises:
        InvalidRunInputError: a part is invalid.
    """
    if not any("content" in message for message in messages):
        return "\n\n".join(message["text"] for message in messages)
    texts = ([{"type": "text", "text": message.get("text")}] for message in messages)
    return parse_prompt(
        [part for message, text in zip(messages, texts, strict=True) for part in message.get("content", text)]
    )


def split_instructions(messages: Sequence[Json], before: str = "") -> tuple[str, list[Json]]:
    """The client's instructions, `before` and then those of system and developer messages; and the other messages."""
    texts = [message["text"] for message in messages if message["role"] == SYSTEM]
    return joined_instructions([before, *texts]), [message for message in messages if message["role"] != SYSTEM]


def run_input_json(
    fields: Json, messages: Sequence[Json], instructions: str, metadata: dict[str, str], param: str
) -> bytes:
    """The RunInput of a new run, as JSON. `fields`: its `agent` …; `instructions`: the client's; "": it has none."""
    if not messages:
        raise Problem(400, "invalid_value", f'"{param}" has no message for the agent; end with a user message.')
    if len(messages) == 1 and messages[0]["role"] == "user":
        prompt = messages[0].get("content") or messages[0]["text"]
        given = {"prompt": prompt}
    else:
        given = {"messages": list(messages)}
    if instructions:
        given["client_instructions"] = instructions
    return json.dumps({**fields, **given, "metadata": metadata}).encode()
