"""An agent's `model_settings` as people may see them, and history may have them: as JSON, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from mulligan.activities.echoed_secrets import REPLACEMENT, SECRET_NAME, is_secret
from mulligan.schema.error_text import type_name

MOST_BYTES = 100_000
"""Bytes of settings as JSON: larger ones are not kept."""
TOO_LARGE = "[larger than {most:,} bytes]"


def shown_settings(settings: Mapping[str, Any]) -> dict[str, JsonValue]:
    """The settings as JSON, with a mark in place of each text that is a secret by its name, at any depth.

    A value that is no JSON is shown by its type's name; settings that are too large or too deep are left out with a note.
    """
    if not settings:
        return {}
    try:
        written = to_json(dict(settings), fallback=type_name, inf_nan_mode="strings")
    except (ValueError, RecursionError):
        return {"settings": "[not JSON]"}
    if len(written) > MOST_BYTES:
        return {"settings": TOO_LARGE.format(most=MOST_BYTES)}
    shown: dict[str, JsonValue] = _without_secrets(from_json(written))
    return shown


def _without_secrets(value: Any, *, is_named_secret: bool = False) -> Any:
    """`is_named_secret`: whether a name around the value is that of a secret."""
    if isinstance(value, dict):
        return {
            name: _without_secrets(each, is_named_secret=is_named_secret or bool(SECRET_NAME.search(name.lower())))
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(each, is_named_secret=is_named_secret) for each in value]
    return REPLACEMENT if is_named_secret and isinstance(value, str) and is_secret(value) else value
