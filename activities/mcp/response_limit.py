"""The limit of one message of an MCP server: more is not kept in memory, and the call gets an error instead."""

from __future__ import annotations

import codecs
import json
import logging
import re

from mulligan.activities.mcp.readable_message import readable_messages
from mulligan.activities.mcp.server_log import SERVER, ServerLines

logger = logging.getLogger("mulligan.mcp")

MAX_RESPONSE_BYTES = 8_000_000
"""Bytes of a message. A model reads 50,000 characters of a result at most, so what is longer is mostly encoded images, and
an image of 6 MB fits. A worker that executes 20 such calls at once needs about 1 GB."""
TOO_LARGE = f"gave an answer of more than {MAX_RESPONSE_BYTES:,} bytes, the limit for one answer"
IS_TOO_LARGE = {"mulligan": "too_large"}
"""The `data` of the error that stands for such an answer: its code is one that servers use as well."""
LINES = "mulligan-mcp-lines"
"""The name of the text encoding that the SDK decodes a program's stdout by: UTF-8, with limited lines."""
_MAX_LINE_BYTES = 16 * MAX_RESPONSE_BYTES
"""Of a line that does not end. The session ends then, and the program with it."""
_ENDS = 1_000
_ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,100}")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_AT_START = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb",")
_ID_AT_END = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z")


class LineDecoder(codecs.IncrementalDecoder):
    """Decodes the lines of a program's stdout, each when it is complete.

    A line that is not a message is left out. One that cannot be read, or is too long, is replaced by an error response to
    the same request. The SDK has no limit of its own: it buffers a line for as long as it does not end, and its transport
    has no other place where one could be set.
    """

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._not_messages = ServerLines(
            SERVER.get(), "wrote a line that is not a message of the protocol", most_lines=1
        )
        self.reset()

    def reset(self) -> None:
        """Forget the line that has not ended."""
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override]
        """Return the lines that have ended.

        Raises:
            UnicodeError: a line does not end.
        """
        *lines, rest = bytes(data).split(b"\n")
        text = []
        for line in lines:
            if line or self._size:
                self._add(line)
                text.append(self._line())
                self.reset()
        self._add(rest)
        if final:
            if self._size:
                text.append(self._line().removesuffix("\n"))
                self.reset()
            self._not_messages.end()
        return "".join(text)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MAX_RESPONSE_BYTES:
            self._parts.append(part)
            return
        if self._size > _MAX_LINE_BYTES:
            raise UnicodeError(f"it wrote a line of more than {_MAX_LINE_BYTES:,} bytes")
        # Only both ends of the line are kept: one of them contains the request's id.
        if not self._tail:
            line = b"".join([*self._parts, part])
            self._parts, self._tail = [line[:_ENDS]], line[-_ENDS:]
        else:
            self._tail = (self._tail + part)[-_ENDS:]

    def _line(self) -> str:
        if self._size <= MAX_RESPONSE_BYTES:
            line = b"".join(self._parts)
            messages = readable_messages(line) if line.strip() else []
            if not messages and line.strip():
                # The SDK would raise, catch and log an exception for each of them.
                self._not_messages.add(line)
            return "".join(f"{message}\n" for message in messages)
        logger.warning("An MCP server wrote a message of %d bytes, which is not read.", self._size)
        request_id = _ID_AT_START.match(b"".join(self._parts)) or _ID_AT_END.search(self._tail)
        if request_id is None:
            return ""  # not the response to a request
        error = {"code": -32_000, "message": TOO_LARGE, "data": IS_TOO_LARGE}
        return json.dumps({"jsonrpc": "2.0", "id": json.loads(request_id[1]), "error": error}) + "\n"


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != LINES:
        return None
    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=LineDecoder, name=LINES)


codecs.register(_find_codec)
