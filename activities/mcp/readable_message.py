"""What a server sends as the messages of the protocol, as far as it can be read.

What is not a message is left out. What answers a request, but cannot be read, becomes an error response to it: so the
request ends now, and not at its timeout.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mulligan.schema.cut_text import beginning
from mulligan.schema.well_formed import well_formed

ANY_VALUE = "mulligan/value"
"""The key of a result that is not an object: the protocol has only objects there."""
IS_UNREADABLE = {"mulligan": "unreadable"}
"""The `data` of the error that stands for an answer that cannot be read."""
NAMELESS = "mulligan/nameless"
"""The key, in the `data` of an error, of a result that names no request."""
_SHOWN_CHARS = 2_000
"""Of what cannot be read, so much is shown to the model."""
_ID = re.compile(r'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,100}")\s*[,}]')
_IS_ANSWER = re.compile(r'"jsonrpc"|"id"[^{]*"(?:result|error)"|"(?:result|error)".*"id"', re.DOTALL)
_INTERNAL_ERROR = -32_603


def readable_messages(data: bytes, request_id: int | str | None = None) -> list[str]:
    """The messages in a line of a program, in an HTTP response or in an event, each as a line; empty where there is none.

    The `id` of an answer that names no request is null.

    Args:
        data: What was sent.
        request_id: The request that this answers, where that is certain.
    """
    text = data.decode("utf-8-sig", errors="replace")
    if _is_message(text, request_id):
        return [text]
    try:
        # Also what JSON does not have, but servers write: NaN, and control characters in texts.
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        if request_id is None and not _IS_ANSWER.search(text):
            return []
        why = str(error) if text.strip() else "it is empty"
        return [_unreadable(_id_in(text) if request_id is None else request_id, why, text)]
    messages = [_message(each, request_id) for each in (value if isinstance(value, list) else [value])]
    lines = [_line(message, text) for message in messages if message is not None]
    if not lines and request_id is not None:
        return [_unreadable(request_id, "it is not a message of the protocol", text)]
    return lines


def _is_message(text: str, request_id: int | str | None) -> bool:
    from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

    try:
        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return False
    if request_id is None or not isinstance(message, JSONRPCResponse | JSONRPCError):
        return True
    return message.id == request_id


def _line(message: dict[str, Any], text: str) -> str:
    line = str(well_formed(json.dumps(message, ensure_ascii=False)))
    is_answer = "method" not in message
    return _unreadable(message["id"], "its form is odd", text) if is_answer and not _is_message(line, None) else line


def _message(value: Any, request_id: int | str | None) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("method"), str):
        sent = {key: value[key] for key in ("id", "method", "params") if value.get(key) is not None}
        if not isinstance(sent.get("params", {}), dict):
            sent.pop("params")  # an empty list, as PHP writes an empty object
        return {"jsonrpc": "2.0", **sent}
    if value.keys().isdisjoint(("result", "error")) or (
        request_id is None and value.keys().isdisjoint(("id", "jsonrpc"))
    ):
        return None
    answered = {"jsonrpc": "2.0", "id": _request_id(value.get("id")) if request_id is None else request_id}
    if value.get("error") is not None:
        return {**answered, "error": _error(value["error"])}
    result = value.get("result")
    given = result if isinstance(result, dict) else {ANY_VALUE: result}
    if answered["id"] is None:
        return {**answered, "error": _error("it names no request") | {"data": {NAMELESS: given}}}
    return {**answered, "result": given}


def _request_id(value: Any) -> int | str | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _error(value: Any) -> dict[str, Any]:
    fields = value if isinstance(value, dict) else {"message": value}
    code, message = fields.get("code"), fields.get("message")
    text = message if isinstance(message, str) else json.dumps(value if message is None else message)
    whole = code if isinstance(code, int) and not isinstance(code, bool) else _INTERNAL_ERROR
    return {"code": whole, "message": beginning(text, 4_000), "data": fields.get("data")}


def _unreadable(request_id: int | str | None, why: str, text: str) -> str:
    shown = beginning(" ".join(text[: 2 * _SHOWN_CHARS].split()), _SHOWN_CHARS)
    said = f"{why}. It begins with: {shown}" if shown else why
    error = {"code": _INTERNAL_ERROR, "message": str(well_formed(said)), "data": IS_UNREADABLE}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})


def _id_in(text: str) -> int | str | None:
    found = _ID.search(text)
    return None if found is None else json.loads(found[1])
