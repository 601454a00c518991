"""The JSON schema of a tool's result."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from mulligan.agent import AgentTool
from mulligan.content import Media
from mulligan.schema.json_schema import schema_validator
from mulligan.schema.plain_function import plain_function
from mulligan.schema.typed_dicts import replace_typed_dicts
from mulligan.tool import Tool


def returns_media(tool: Tool) -> bool:
    """Whether a tool says that it returns images, files or audio: what programs read of such a result is its text."""
    try:
        return _has_media(get_type_hints(plain_function(tool.function)).get("return"))
    except Exception:  # noqa: BLE001 - annotations are users' code, and any class may be one
        return False


def _has_media(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, Media)) or any(map(_has_media, get_args(hint)))


def result_schema(tool: Tool) -> dict[str, Any] | None:
    """The JSON schema of a tool's result: as its option says, or of what its function says that it returns; None where
    neither is a type that says something.
    """
    if isinstance(tool, AgentTool) and tool.output is not None:
        return tool.output.answer_schema
    if isinstance(tool, AgentTool) and tool.agent.declared_output is not None:
        return tool.agent.declared_output.whole.schema
    try:
        result = tool.traits.returns or get_type_hints(plain_function(tool.function)).get("return")
        schema = None if result in (None, Any, object) else TypeAdapter(replace_typed_dicts(result)).json_schema()
        if schema:
            schema_validator(schema)
    except Exception:  # noqa: BLE001 - annotations are users' code, and any class may be one
        return None
    return schema or None
