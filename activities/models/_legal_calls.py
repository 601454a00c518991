"""What makes a call of the model's legal when it is echoed to a strict server: names, ids, arguments."""

from __future__ import annotations

import hashlib
import json
import re
from typing import NoReturn

from mulligan.values import well_formed

LONGEST_NAME = 64
LONGEST_ID = 40
"""OpenAI's limit for a call's id in Chat Completions; the Responses API takes 64."""


def legal_name(name: str) -> str:
    """The name as ^[a-zA-Z0-9_-]{1,64}$."""
    return _legal(name)[:LONGEST_NAME] or "unknown"


def legal_id(raw: str) -> str:
    """The id as ^[a-zA-Z0-9_-]{1,40}$: different ids stay different, and a call and its result stay a pair."""
    if raw and len(raw) <= LONGEST_ID and raw == _legal(raw):
        return raw
    mark = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_legal(raw)[: LONGEST_ID - 9] or 'call'}_{mark}"


def legal_arguments(raw: str) -> str:
    """The arguments as the text of a JSON object (RFC 8259): untouched where they are one already.

    Otherwise an object that shows the model what it wrote. No arguments at all are an empty object.
    """
    if not raw.strip():
        return "{}"
    return raw if _is_strict_object(raw) else json.dumps({"invalid_json": well_formed(raw)}, ensure_ascii=False)


def _legal(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)


def _is_strict_object(text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_no_constant)
        # What Python reads and strict readers do not: 1e999, and escapes of half a character.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
