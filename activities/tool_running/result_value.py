"""The value of a result, read back from the text that it was recorded as."""

from __future__ import annotations

import json
from typing import Any

from pydantic import JsonValue

_OF_JSON = ("array", "object", "integer", "number", "boolean")


def result_value(text: str, schema: Any) -> JsonValue:
    """The value. The text is JSON unless the tool returns texts; without a known type, only a list or an object is.

    `schema`: the JSON schema of the tool's results; None: it is not known.

    Raises:
        ValueError: the results are no texts, and this text is no JSON: it was cut, for example.
    """
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if kind in _OF_JSON:
            raise ValueError(text) from None
        return text
    return value if kind is not None or isinstance(value, dict | list) else text
