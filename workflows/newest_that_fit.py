"""The newest entries of a registry that continue-as-new carries."""

from __future__ import annotations

import json
from typing import Any


def newest_that_fit(entries: dict[str, Any], most_characters: int) -> dict[str, Any]:
    """The last entries of a dict of JSON values, in its order, whose keys and JSON together are within the limit."""
    left, fitting = most_characters, []
    for key, value in reversed(entries.items()):
        left -= len(key) + len(json.dumps(value))
        if left < 0:
            break
        fitting.append((key, value))
    return dict(reversed(fitting))
