"""The result of a call that ran, as far as it can be read, and the sentence on what cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mulligan.activities.mcp.readable_message import ANY_VALUE

if TYPE_CHECKING:
    from mcp.types import CallToolResult

_UNREADABLE = "mulligan/unreadable"
"""The key, in the `_meta` of a result, of what cannot be read of it: a list of phrases."""
_FIELDS = frozenset({"content", "structuredContent", "isError"})
_FIELDS_OF: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name", "title", "description", "mimeType"),
    "resource": ("resource",),
}
"""What is used of a block, by its type. The rest may be wrong without harm."""


def readable_result(result: dict[str, Any], version: str) -> dict[str, Any]:
    """The result of a call in the form of the protocol's version."""
    if "inputRequests" in result or "requestState" in result:
        return result  # no result yet
    unreadable: list[str] = []
    content = [_readable_block(block, version, unreadable) for block in _blocks(result, unreadable)]
    readable = {
        "resultType": "complete",
        "content": content,
        "isError": str(result.get("isError", False)).lower() in ("true", "1"),
        "_meta": {_UNREADABLE: unreadable},
    }
    structured = result.get("structuredContent")
    if structured is None:
        return readable
    if _is_valid({**readable, "structuredContent": structured}, version):
        return {**readable, "structuredContent": structured}
    if not any(block["type"] == "text" for block in content):
        content.insert(0, _text(structured))
    return readable


def note_unreadable(result: CallToolResult, what: str) -> None:
    """Note one more thing that cannot be read of a result, as a phrase."""
    result.meta = {**(result.meta or {}), _UNREADABLE: [*_noted(result), what]}


def unreadable_sentence(result: CallToolResult) -> str:
    """What the model is told where a part of a result cannot be read; empty where all can."""
    noted = list(dict.fromkeys(_noted(result)))
    return f"[The call ran. Of its result, not all is as the protocol says: {'; '.join(noted)}.]" if noted else ""


def _noted(result: CallToolResult) -> list[str]:
    return (result.meta or {}).get(_UNREADABLE, [])  # type: ignore[no-any-return]


def _blocks(result: dict[str, Any], unreadable: list[str]) -> list[Any]:
    content = result.get("content")
    if isinstance(content, list):
        return content
    if content is not None:
        unreadable.append("its content is not a list")
        return [content]
    if ANY_VALUE in result:
        unreadable.append("it is not an object")
        return [] if result[ANY_VALUE] is None else [_text(result[ANY_VALUE])]
    own = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
    if own and _FIELDS.isdisjoint(own):
        unreadable.append("it has fields of its own, which are shown as JSON")
        return [_text(own)]
    return []


def _readable_block(block: Any, version: str, unreadable: list[str]) -> dict[str, Any]:
    if isinstance(block, str):
        return _text(block)
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        kind = "text" if isinstance(block, dict) and "text" in block else ""
    fields = {name: block[name] for name in _FIELDS_OF.get(kind, ()) if block.get(name) is not None}
    readable = {**_DEFAULTS[kind](fields), "type": kind} if kind in _DEFAULTS else {}
    if readable and _is_valid({"content": [readable], "resultType": "complete"}, version):
        return readable
    what = f"of the type {kind[:40]!r}" if kind else "without a type"
    unreadable.append(f"a part {what} cannot be read, and is shown as JSON")
    return _text(block)


def _text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}


def _text_block(fields: dict[str, Any]) -> dict[str, Any]:
    return _text(fields["text"]) if "text" in fields else {}


def _media_block(fields: dict[str, Any]) -> dict[str, Any]:
    data = fields.get("data")
    if isinstance(data, str) and data.startswith("data:") and "," in data:
        head, _, data = data.partition(",")
        fields = {"mimeType": head[5:].partition(";")[0], **fields, "data": data}
    return {"mimeType": "", **fields}


def _link_block(fields: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in fields.items() if isinstance(value, str)}
    return {"name": known.get("title", known.get("uri", "")), **known}


def _resource_block(fields: dict[str, Any]) -> dict[str, Any]:
    resource = fields.get("resource")
    inner = resource if isinstance(resource, dict) else {}
    names = ("uri", "mimeType", "text", "blob")
    return {"resource": {"uri": "", **{name: inner[name] for name in names if isinstance(inner.get(name), str)}}}


_DEFAULTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "text": _text_block,
    "image": _media_block,
    "audio": _media_block,
    "resource_link": _link_block,
    "resource": _resource_block,
}
"""How the fields of a block are completed, by its type."""


def _is_valid(result: dict[str, Any], version: str) -> bool:
    from mcp_types import methods

    try:
        methods.parse_server_result("tools/call", version, result)
    except ValidationError:
        return False
    return True
