"""What an MCP server's tool gave, as the text that the model reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock

NOTHING = "[no content]"


def text_of(result: CallToolResult) -> str:
    """Texts as they are; what is no text by its type and size; the structured content where there is no text."""
    parts = [_part(block) for block in result.content]
    has_text = any(is_text for is_text, _ in parts)
    if not has_text and result.structured_content is not None:
        parts.insert(0, (True, json.dumps(result.structured_content, ensure_ascii=False)))
    return "\n".join(text for _, text in parts) or NOTHING


def _part(block: ContentBlock) -> tuple[bool, str]:
    """Whether it is a text, and how it is told."""
    match block.type:
        case "text":
            return True, block.text
        case "image" | "audio":
            return False, f"[{block.mime_type}, {_bytes(block.data)}]"
        case "resource_link":
            kind = f", {block.mime_type}" if block.mime_type else ""
            return False, f"[{block.uri}{kind}]"
    resource = block.resource
    kind = resource.mime_type or "resource"
    if (text := getattr(resource, "text", None)) is not None:
        return True, f"[{kind}, {resource.uri}]\n{text}"
    return False, f"[{kind}, {_bytes(getattr(resource, 'blob', ''))}, {resource.uri}]"


def _bytes(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('='):,} bytes"
