"""The output of MCP servers in the worker's log, limited for each server; a line says how much was left out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import TextIOWrapper

logger = logging.getLogger("mulligan.mcp")

LINE_BYTES = 500
LINES_A_MINUTE = 100
SERVER: ContextVar[str] = ContextVar("mulligan_mcp_server", default="")
"""The name of the server whose session the running task is part of."""


class ServerLines:
    """Logs the lines of one output of a server: the first ones of each minute; the others are counted.

    Args:
        server: The server's name.
        says: What the log says of a line.
        most_lines: How many lines are logged a minute.
    """

    def __init__(self, server: str, says: str = "", most_lines: int = LINES_A_MINUTE) -> None:
        self._context = f"MCP server {server!r}{says and f' {says}'}"
        self._level = logging.WARNING if says else logging.INFO
        self._most_lines = most_lines
        self._since, self._lines, self._left_out, self._bytes = time.monotonic(), 0, 0, 0

    def add(self, line: bytes) -> None:
        """Log or count a line."""
        if time.monotonic() - self._since > 60:
            self.end()
        self._lines += 1
        if self._lines <= self._most_lines:
            text = line[:LINE_BYTES].decode(errors="replace").strip()
            logger.log(self._level, "%s: %s", self._context, text)
        else:
            self._left_out += 1
            self._bytes += len(line)

    def end(self) -> None:
        """Log how many lines were left out, and begin with the next minute."""
        if self._left_out:
            text = "%s: %d more lines within %.0f s, of %d bytes in all, are left out."
            seconds = time.monotonic() - self._since
            logger.log(self._level, text, self._context, self._left_out, seconds, self._bytes)
        self._since, self._lines, self._left_out, self._bytes = time.monotonic(), 0, 0, 0


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
        SERVER.set(self._server)  # of this thread
        lines = ServerLines(self._server)
        with os.fdopen(descriptor, "rb") as file:
            while line := file.readline(LINE_BYTES):
                if text := line.decode(errors="replace").strip():
                    self.last_line = text
                    lines.add(line)
        lines.end()
