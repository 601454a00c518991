"""The result of an MCP server's tool as the model gets it: images, audio and binary resources stay what they are."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mulligan.activities.mcp.readable_result import note_unreadable, unreadable_sentence
from mulligan.content import Audio, File, Image, Part, Text
from mulligan.schema.url_parts import url_parts

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock

NO_CONTENT = "[no content]"
_KINDS: dict[str, type[Image] | type[Audio]] = {"image": Image, "audio": Audio}


def result_parts(result: CallToolResult) -> list[Part] | None:
    """The parts of a tool's result, if it has images, files or audio that can be used; their texts as in `result_text`."""
    media = [_media(block) for block in result.content]
    if not any(media):
        return None
    parts = [part or Text(text=_part_text(block)[1]) for block, part in zip(result.content, media, strict=True)]
    return [*parts, *(Text(text=says) for says in _unreadable(result))]


def _media(block: ContentBlock) -> Part | None:
    """The image, audio or binary resource of a block; None for others, and for bytes that are not of their type."""
    match block.type:
        case "image" | "audio":
            fields: dict[str, str | None] = {"data": block.data, "media_type": block.mime_type}
            part: type[Image] | type[Audio] | type[File] = _KINDS[block.type]
        case "resource":
            name = PurePosixPath(url_parts(str(block.resource.uri)).path).name[:255]
            media_type = (block.resource.mime_type or "").lower()
            fields = {"data": getattr(block.resource, "blob", None), "media_type": media_type, "name": name or None}
            part = _KINDS.get(media_type.partition("/")[0], File)
        case _:
            return None
    for each in (fields["media_type"], ""):  # where its bytes are of another type, that one counts
        try:
            return part.model_validate({**fields, "media_type": each})
        except ValidationError:
            continue
    return None


def _unreadable(result: CallToolResult) -> list[str]:
    """The sentence on what cannot be read of a result, if there is something."""
    for block in result.content:
        if block.type in _KINDS and _media(block) is None:
            note_unreadable(result, f"the {block.type} is not of the type that it names, nor of a known one")
    return [says] if (says := unreadable_sentence(result)) else []


def result_text(result: CallToolResult) -> str:
    """The text of a tool's result: texts unchanged, other content by its type and size.

    Without any text, structured content is written as JSON.
    """
    parts = [_part_text(block) for block in result.content]
    has_text = any(is_text for is_text, _ in parts)
    if not has_text and result.structured_content is not None:
        parts.insert(0, (True, json.dumps(result.structured_content, ensure_ascii=False)))
    whole = "\n".join(text for _, text in parts) or NO_CONTENT
    return "\n".join([whole, *_unreadable(result)])


def _part_text(block: ContentBlock) -> tuple[bool, str]:
    """Whether a part of a result is a text, and the text that the model gets for it."""
    match block.type:
        case "text":
            return True, block.text
        case "image" | "audio":
            return False, f"[{block.mime_type}, {_decoded_size(block.data)}]"
        case "resource_link":
            kind = f", {block.mime_type}" if block.mime_type else ""
            named = [text for text in (block.title or block.name, block.description) if text and text != block.uri]
            return False, f"[{block.uri}{kind}]" + "".join(f" {text}" for text in named)
    resource = block.resource
    kind = resource.mime_type or "resource"
    if (text := getattr(resource, "text", None)) is not None:
        return True, f"[{kind}, {resource.uri}]\n{text}"
    return False, f"[{kind}, {_decoded_size(getattr(resource, 'blob', ''))}, {resource.uri}]"


def _decoded_size(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('='):,} bytes"
