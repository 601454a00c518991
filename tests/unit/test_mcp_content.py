"""Results of MCP servers: images, audio and binary resources stay what they are."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from mcp import types

from mulligan.activities.mcp.call_result import result_parts, result_text
from mulligan.content import described, media_of
from tests.support.content_files import PDF, WAV, png


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def blob(data: bytes, media_type: str | None, uri: str = "file:///docs/a.pdf") -> types.EmbeddedResource:
    return types.EmbeddedResource(
        resource=types.BlobResourceContents(uri=uri, mime_type=media_type, blob=encoded(data))
    )


BLOCKS: list[tuple[Any, str, bytes]] = [
    (types.ImageContent(data=encoded(png()), mime_type="image/png"), "image (image/png, 95 bytes)", png()),
    (types.AudioContent(data=encoded(WAV), mime_type="audio/wav"), "audio (audio/wav, 44 bytes)", WAV),
    (blob(PDF, "application/pdf"), f'file "a.pdf" (application/pdf, {len(PDF)} bytes)', PDF),
    (blob(PDF, None), f'file "a.pdf" (application/pdf, {len(PDF)} bytes)', PDF),
    (blob(png(), "image/png", "memo://x/a.png"), 'image "a.png" (image/png, 95 bytes)', png()),
]


@pytest.mark.parametrize(("block", "label", "data"), BLOCKS)
def test_content_of_a_known_type_is_a_part(block: Any, label: str, data: bytes) -> None:
    parts = result_parts(types.CallToolResult(content=[types.TextContent(text="Here."), block]))
    assert described(parts) == f"Here.\n\n[{label}]"
    assert [part.content for part in media_of(parts)] == [data]


@pytest.mark.parametrize(
    "block",
    [
        types.TextContent(text="only text"),
        types.ResourceLink(uri="https://x.test/a.png", name="a", mime_type="image/png"),
        types.ImageContent(data=encoded(b"no image"), mime_type="image/png"),
        types.ImageContent(data="?", mime_type="image/png"),
        blob(b"\1\2", None, "file:///a.bin"),
    ],
)
def test_anything_else_stays_a_text(block: Any) -> None:
    result = types.CallToolResult(content=[block])
    assert result_parts(result) is None
    assert result_text(result)
