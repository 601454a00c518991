"""What clients of other protocols send: images, files and audio as parts of a prompt, and their instructions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mulligan.run_input import CLIENT_INSTRUCTIONS_CHARS, parse_prompt
from mulligan.schema.media_types import type_of_name
from mulligan.serve.problems import Problem

Json = dict[str, Any]
_OF_URLS = {"image": "image/jpeg", "audio": "audio/mpeg", "file": "application/pdf"}
"""The media type of a URL that says none. The provider that fetches it finds out itself."""


def media_part(kind: str, source: Any, *, media_type: Any = None, name: Any = None) -> Json:
    """The part for a URL, a data URL, or base64.

    Args:
        kind: `image`, `audio` or `file`.
        source: What the client sends.
        media_type: Its media type, if the client says it.
        name: The file's name, if the client says it.
    """
    is_url = isinstance(source, str) and source.partition(":")[0].lower() in ("http", "https", "data")
    if is_url and not media_type and not str(source).lower().startswith("data:"):
        media_type = type_of_name(str(name or source)) or _OF_URLS[kind]
    part = {"type": kind, "url" if is_url else "data": source, "media_type": media_type, "name": name}
    return {field: value for field, value in part.items() if value is not None}


def joined_instructions(texts: Iterable[str]) -> str:
    """The instructions of a client as one text; "": it has none.

    Raises:
        Problem: they are too long.
    """
    instructions = "\n\n".join(filter(None, (text.strip() for text in texts)))
    if len(instructions) > CLIENT_INSTRUCTIONS_CHARS:
        raise Problem(
            400, "invalid_value", f'"instructions" and the system and developer messages have {len(instructions):,} '
            f"characters; the limit is {CLIENT_INSTRUCTIONS_CHARS:,}.",
        )  # fmt: skip
    return instructions


def as_prompt(parts: list[Json]) -> Any:
    """The prompt for parts: one text, if all are texts.

    Raises:
        InvalidRunInputError: a part is invalid.
    """
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parse_prompt(parts)
