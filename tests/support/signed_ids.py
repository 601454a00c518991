"""A gateway before Gemini that has each call's signature in its id, as LiteLLM does: the id must come back as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.openai_shapes import Refusal

SIGNATURE = f"__thought__{'EuIDCt8DAWkUfRN3uZOVxKszco' * 20}=="
FIELDS = {
    "function": "id",
    "function_call": "call_id",
    "function_call_output": "call_id",
    "tool_use": "id",
    "tool_result": "tool_use_id",
}
"""Where the calls and results of each API have the call's id, by their types."""


def signed(answer: Any) -> Any:
    """An answer with a signature in the id of each of its calls."""
    return _changed(answer, lambda call_id: call_id + SIGNATURE)


def unsigned(body: Any) -> Any:
    """A request as the rules of its API see it.

    Raises:
        Refusal: a call has come back without its signature.
    """
    return _changed(body, _without_signature)


def _without_signature(call_id: str) -> str:
    if not call_id.endswith(SIGNATURE):
        raise Refusal("Function call is missing a thought_signature in functionCall parts.", None)
    return call_id.removesuffix(SIGNATURE)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    if not isinstance(value, dict):
        return value
    field = "tool_call_id" if value.get("role") == "tool" else FIELDS.get(str(value.get("type")), "")
    changed = {name: _changed(inner, change) for name, inner in value.items()}
    return {**changed, field: change(value[field])} if isinstance(value.get(field), str) else changed
