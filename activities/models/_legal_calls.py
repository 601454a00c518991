"""Make what goes back acceptable to a strict server: a call's name, its id, its arguments, and a text that is empty."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NoReturn

MAX_NAME_CHARS = 64
MAX_ID_CHARS = 40
"""OpenAI's limit for a call's id in Chat Completions; the Responses API accepts 64."""
NO_TEXT, NO_RESULT = "(no text)", "(no result)"
"""For messages and results without a text: many servers refuse empty ones (Moonshot, Zhipu, Mistral, Bedrock)."""


def said(text: str, otherwise: str = NO_TEXT) -> str:
    """The text; `otherwise` where it says nothing."""
    return text if text.strip() else otherwise


def legal_name(name: str) -> str:
    """Return the name as ^[a-zA-Z0-9_-]{1,64}$."""
    return _replace_illegal(name)[:MAX_NAME_CHARS] or "unknown"


def legal_id(raw: str) -> str:
    """Return the id as ^[a-zA-Z0-9_-]{1,40}$. Different ids stay different, so a call and its result stay a pair."""
    if raw and len(raw) <= MAX_ID_CHARS and raw == _replace_illegal(raw):
        return raw
    digest = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_replace_illegal(raw)[: MAX_ID_CHARS - 9] or 'call'}_{digest}"


def legal_arguments(raw: str) -> str:
    """Return the arguments as the text of a JSON object (RFC 8259).

    They are unchanged where they are a JSON object already, and `{}` otherwise: a model repeats the form of the calls that
    it is sent. The result of the call quotes what the model wrote.
    """
    return raw if _object_in(raw) is not None else "{}"


def legal_object(raw: str) -> dict[str, Any]:
    """Return the object of `legal_arguments`."""
    return _object_in(raw) or {}


def _replace_illegal(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)


def _object_in(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is, if every provider accepts it as the arguments of a call; None if it is not one."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        # Python parses 1e999 and escapes of lone surrogates; strict parsers do not.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
