"""How an answer quotes a value that a client has sent."""

from __future__ import annotations

import json
from typing import Any

from mulligan.schema.cut_text import beginning

SHOWN_CHARS = 80
"""Characters of a value that an answer shows."""


def shown_json(value: Any) -> str:
    """The beginning of a value as JSON. A long value is not written to its end: that would take long."""
    given = value[:100] if isinstance(value, str) else value
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(given):
        text += piece
        if len(text) > SHOWN_CHARS:
            return beginning(text, SHOWN_CHARS)
    return text
