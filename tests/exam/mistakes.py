"""The mistakes that the model makes before each gold call. (That it makes it twice is in `gold_player.py`.)"""

from __future__ import annotations

import json
import random
from typing import Any


def wrong_calls(
    name: str, arguments: dict[str, Any], schema: dict[str, Any], chance: random.Random
) -> dict[str, tuple[str, str]]:
    """Wrong forms of a call by their kind: (name, arguments as text).

    A form that the schema allows would be another valid call, and no mistake: so only fields that are required get another name,
    and only numbers that may not be texts become texts. A kind that the call has no place for is left out.

    Args:
        name: The tool.
        arguments: The gold call's.
        schema: The JSON schema of the tool's arguments.
        chance: It decides which name, field or place is wrong.
    """
    text = json.dumps(arguments)
    cut = chance.randrange(1, len(text))
    wrong = {
        "unknown tool": (f"{name}_{chance.choice(('now', 'v2', 'for_user'))}", text),
        "cut JSON": (name, text[:cut]),
    }
    if fields := [field for field in schema.get("required", []) if field in arguments]:
        field = chance.choice(fields)
        renamed = {f"the_{key}" if key == field else key: value for key, value in arguments.items()}
        wrong["wrong field"] = (name, json.dumps(renamed))
    numbers = {field for field, each in schema["properties"].items() if each.get("type") in ("integer", "number")}
    as_texts = {key: json.dumps(value) if key in numbers else value for key, value in arguments.items()}
    if as_texts != arguments:
        wrong["string for number"] = (name, json.dumps(as_texts))
    return wrong
