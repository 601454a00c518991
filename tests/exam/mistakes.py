"""The mistakes that the model makes before each gold call."""

from __future__ import annotations

import json
import random
from typing import Any

KINDS = ("unknown tool", "wrong field", "cut JSON", "string for number", "the same call twice")


def wrong_calls(
    name: str, arguments: dict[str, Any], required: list[str], chance: random.Random
) -> dict[str, tuple[str, str]]:
    """Wrong forms of a call by their kind: (name, arguments as text). A kind that the call has no place for is left out.

    Args:
        name: The tool.
        arguments: The gold call's.
        required: The fields that its schema requires: another name for a field that may be left out would be a valid call.
        chance: It decides which letter, field or number is wrong.
    """
    text = json.dumps(arguments)
    cut = chance.randrange(1, len(text))
    wrong = {
        "unknown tool": (f"{name}_{chance.choice(('now', 'v2', 'for_user'))}", text),
        "cut JSON": (name, text[:cut]),
    }
    if fields := [field for field in required if field in arguments]:
        field = chance.choice(fields)
        renamed = {f"the_{key}" if key == field else key: value for key, value in arguments.items()}
        wrong["wrong field"] = (name, json.dumps(renamed))
    as_text = _with_text_for_number(arguments)
    if as_text != arguments:
        wrong["string for number"] = (name, json.dumps(as_text))
    return {kind: wrong[kind] for kind in KINDS if kind in wrong}


def _with_text_for_number(value: Any) -> Any:
    """The value with a text in place of each number."""
    if isinstance(value, dict):
        return {key: _with_text_for_number(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_text_for_number(each) for each in value]
    return json.dumps(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
