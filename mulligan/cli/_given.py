"""A JSON object that a person gives to a command: as text, from stdin, or from a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mulligan.cli._terminal import fail


def json_object(given: str, name: str, example: str, *, is_text: bool = False) -> dict[str, Any]:
    """The object: `-` is stdin, `@FILE` a file, unless it `is_text`. `name` is what a fault is blamed on."""
    try:
        if given == "-" and not is_text:
            given = sys.stdin.read()
        elif given.startswith("@") and not is_text:
            given = Path(given[1:]).read_text(encoding="utf-8")
        value = json.loads(given)
    except OSError as error:
        fail(f"{name}: {error.filename}: {error.strerror}.")
    except (ValueError, RecursionError) as error:
        fail(f"{name} is not JSON: {error}.")
    if not isinstance(value, dict):
        fail(f"{name} must be a JSON object like {example}.")
    return value
