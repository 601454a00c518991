"""A page of a server's tools as it can be read: a tool that cannot is left out, with the reason, and the others stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mulligan.activities.mcp.readable_message import ANY_VALUE
from mulligan.schema.cut_text import beginning
from mulligan.schema.subschemas import MAX_DEPTH

if TYPE_CHECKING:
    from mcp.types import ListToolsResult

LEFT_OUT = "mulligan/left_out"
"""The key, in the `_meta` of a page, of the tools that are left out: the name and the number of each, and why."""
_NAME_CHARS = 80
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def readable_page(result: dict[str, Any], version: str) -> dict[str, Any]:
    """A page of tools in the form of the protocol's version."""
    tools = result.get("tools", result.get(ANY_VALUE))
    if not isinstance(tools, list):
        return result
    left_out: list[tuple[str, int, str]] = []
    readable = []
    for number, tool in enumerate(tools, 1):
        try:
            readable.append(_readable_tool(tool, version))
        except (TypeError, RecursionError) as error:
            name = tool.get("name") if isinstance(tool, dict) else None
            left_out.append((beginning(name, _NAME_CHARS) if isinstance(name, str) else "", number, str(error)))
    cursor = result.get("nextCursor")
    # Empty texts, and `false`, are what some servers write where there are no more pages.
    more = {"nextCursor": str(cursor)} if cursor and isinstance(cursor, str | int) else {}
    head = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    kept = {key: result[key] for key in head if key in result}
    return {**head, **kept, "tools": readable, "_meta": {LEFT_OUT: left_out}, **more}


def left_out_of(page: ListToolsResult, before: int = 0) -> dict[str, str]:
    """Why tools of a page are left out, by their names, or numbers in the list. `before`: the tools of earlier pages."""
    left_out = (page.meta or {}).get(LEFT_OUT, ())
    return {name or f"number {before + number}": why for name, number, why in left_out}


def _readable_tool(tool: Any, version: str) -> dict[str, Any]:
    """A tool with what is used of its definition.

    Raises:
        TypeError: it cannot be read; the message says why.
    """
    if not isinstance(tool, dict):
        raise TypeError("its definition is not an object")
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise TypeError("it has no name")
    readable = {"name": name, "inputSchema": _input_schema(tool.get("inputSchema", tool.get("input_schema")))}
    readable |= {key: tool[key] for key in ("title", "description") if isinstance(tool.get(key), str)}
    if why := _fault(readable, version):
        raise TypeError(why)
    output = tool.get("outputSchema")
    # Without it, results are not checked. That takes nothing from the tool.
    is_readable = isinstance(output, dict) and not _fault({**readable, "outputSchema": output}, version)
    return {**readable, "outputSchema": output} if is_readable else readable


def _input_schema(schema: Any) -> dict[str, Any]:
    if schema is None or schema == [] or schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise TypeError("its inputSchema is not an object")
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise TypeError(f"its arguments are not an object, but of type {kinds!r}")
    return {"properties": {}, **_with_maps(schema, 0), "type": "object"}


def _with_maps(value: Any, depth: int) -> Any:
    """A schema with empty maps where it has empty lists in their place, as PHP writes both, and without null there."""
    if depth > MAX_DEPTH:
        return value  # it is refused later, with its depth
    if isinstance(value, list):
        return [_with_maps(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    changed = {key: {} if key in _MAPS and inner == [] else inner for key, inner in value.items()}
    return {
        key: _with_maps(inner, depth + 1)
        for key, inner in changed.items()
        if inner is not None or key not in (*_MAPS, "required")
    }


def _fault(tool: dict[str, Any], version: str) -> str | None:
    """Why the SDK would refuse a tool, and with it the whole page."""
    from mcp_types import methods

    page = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    try:
        methods.parse_server_result("tools/list", version, page)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(each) for each in first["loc"][2:])
        return f"its {where}: {first['msg']}"
    return None
