"""Small files of real formats."""

from __future__ import annotations

import struct
import zlib

PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Count 0/Kids[]>>endobj\n"
    b"trailer<</Root 1 0 R>>\n%%EOF\n"
)
WAV = (
    b"RIFF"
    + struct.pack("<I", 36)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    + b"data\0\0\0\0"
)


def png(size: int = 0, seed: int = 0, says: str = "") -> bytes:
    """A valid PNG of one pixel, with a comment that makes it at least `size` bytes long. Each seed gives another one.

    `says`: the beginning of the comment.
    """
    pixel = _chunk(b"IDAT", zlib.compress(b"\0" + bytes([seed % 256, 0, 0])))
    head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    comment = b"Comment\0" + says.encode() + f"{seed:06}".encode() + b"." * size
    return head + _chunk(b"tEXt", comment) + pixel + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
