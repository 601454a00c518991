"""Limits how much one place in the code can log for a run or an MCP server: others decide how often something is faulty."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass

from mulligan.activities.mcp.server_log import SERVER

LINES, CHARACTERS, SECONDS = 600, 500_000, 60.0
"""The most that one place may write for one run or server within these seconds."""
PLACES = 1_000
"""The most that are counted separately: where more runs write at once, the others of a place share one limit."""
TRACE_CHARACTERS = 5_000
"""A stack trace counts as this many."""
LIBRARIES = ("asyncio", "httpx2", "mcp", "mulligan", "opentelemetry", "py.warnings", "temporalio", "uvicorn")
"""The loggers that are limited, with those below them: users' own code may log as much as it likes."""


@dataclass
class _Place:
    since: float
    lines: int = 0
    characters: int = 0
    left_out: int = 0


class LimitedLines(logging.Filter):
    """A filter for a handler, after `LogFields`.

    A place's last line before a pause says so; its first one after it how many are missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int, str], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if record.name.partition(".")[0] not in LIBRARIES and record.name not in LIBRARIES:
            return True
        now = time.monotonic()
        key = self._key(record, now)
        place = self._places.setdefault(key, _Place(now))
        if now - place.since >= SECONDS:
            if place.left_out:
                _note(record, f"before this, {place.left_out:,} such lines were left out")
            place.since, place.lines, place.characters, place.left_out = now, 0, 0, 0
        if place.lines >= LINES or place.characters >= CHARACTERS:
            place.left_out += 1
            return False
        place.lines += 1
        place.characters += _characters(record) + (TRACE_CHARACTERS if record.exc_info else 0)
        if place.lines >= LINES or place.characters >= CHARACTERS:
            _note(record, f"more such lines are left out for {SECONDS - (now - place.since):.0f} s")
        return True

    def _key(self, record: logging.LogRecord, now: float) -> tuple[str, int, str]:
        key = (record.pathname, record.lineno, SERVER.get() or getattr(record, "workflow_id", ""))
        if key not in self._places and len(self._places) >= PLACES:
            # A copy: other threads log meanwhile.
            self._places = {at: place for at, place in list(self._places.items()) if now - place.since < SECONDS}
            if len(self._places) >= PLACES:
                return (*key[:2], "")
        return key


def _characters(record: logging.LogRecord) -> int:
    try:
        return len(record.getMessage())
    except (TypeError, ValueError):  # the arguments do not fit the text: the handler reports it
        return len(str(record.msg))


def _note(record: logging.LogRecord, text: str) -> None:
    with suppress(TypeError, ValueError):
        record.msg, record.args = f"({text}) {record.getMessage()}", ()
