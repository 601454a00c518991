"""The output of MCP servers in the worker's log, limited to 100 lines a minute for each server."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

logger = logging.getLogger("mulligan.mcp")

LINE_BYTES = 500
LINES_A_MINUTE = 100


class WithoutTracebacks(logging.Filter):
    """A filter for log handlers: the MCP SDK logs each line that is not a message with a traceback that quotes the line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the traceback, and keep the record."""
        if record.name.startswith("mcp."):
            record.exc_info = record.exc_text = None
        return True


class Stderr:
    """The stderr of a server: a pipe that a thread reads until every process that writes to it has ended."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.last_line = ""
        """The newest line that is not empty."""

    @contextmanager
    def open(self) -> Iterator[TextIOWrapper]:
        """Yield the file to start the server with. It is closed after the block; the server has its own copy."""
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
                self.last_line = text
                lines += 1
                if lines <= LINES_A_MINUTE:
                    logger.info("MCP server %r: %s", self._server, text)
                elif lines == LINES_A_MINUTE + 1:
                    logger.info(
                        "MCP server %r writes more than %d lines a minute; the rest is left out.",
                        self._server,
                        LINES_A_MINUTE,
                    )
