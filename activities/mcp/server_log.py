"""What an MCP server says, in the worker's log: some of it, however much it is."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

logger = logging.getLogger("mulligan.mcp")

LINE_BYTES, LINES_A_MINUTE = 500, 100


class WithoutTracebacks(logging.Filter):
    """For a handler: the MCP SDK logs each line that is no message with a stack trace, which quotes the line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the trace off; keep what was said."""
        if record.name.startswith("mcp."):
            record.exc_info = record.exc_text = None
        return True


class Stderr:
    """What a server writes to its stderr: a pipe whose other end is read by a thread, until all who write have ended."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.last = ""
        """The newest line that says something."""

    @contextmanager
    def opened(self) -> Iterator[TextIOWrapper]:
        """What the server's stderr is to be; the server has its own copy of it when the block ends."""
        read, write = os.pipe()
        threading.Thread(target=self._read, args=(read,), name=f"stderr of {self._server}", daemon=True).start()
        with os.fdopen(write, "w") as file:
            yield file

    def _read(self, descriptor: int) -> None:
        since, lines = time.monotonic(), 0
        with os.fdopen(descriptor, "rb") as file:
            while line := file.readline(LINE_BYTES):
                text = line.decode(errors="replace").strip()
                if time.monotonic() - since > 60:
                    since, lines = time.monotonic(), 0
                if not text:
                    continue
                self.last = text
                lines += 1
                if lines <= LINES_A_MINUTE:
                    logger.info("MCP server %r: %s", self._server, text)
                elif lines == LINES_A_MINUTE + 1:
                    logger.info(
                        "MCP server %r writes more than %d lines a minute; the rest is left out.",
                        self._server,
                        LINES_A_MINUTE,
                    )
