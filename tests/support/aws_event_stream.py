"""The binary streams of AWS."""

from __future__ import annotations

import binascii
import json
import struct
from typing import Any


def aws_frame(kind: str, payload: Any) -> bytes:
    """An event: its headers, and its payload as JSON, with the checksums of both."""
    data, headers = json.dumps(payload).encode(), b""
    for name, value in ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(data), len(headers))
    whole = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + data
    return whole + struct.pack(">I", binascii.crc32(whole))
