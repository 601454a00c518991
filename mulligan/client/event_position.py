"""The position of a reader in a run's events, and its text: the token of an event."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote

from mulligan.wire.event_types import Event, ToolProgress

MOST_CHARS, MOST_DEPTH = 20_000, 10
"""The longest token, and the deepest: a level for each level of sub-agents."""
_POSITION = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})\.([0-9]{1,15}))?")
_REPORT = re.compile(r"~([^~=()]{1,1000})=([0-9]{1,9})\.([0-9]{1,15})")
_SUB_RUN = re.compile(r"~([^~=()]{1,1000})=\(")


class EventTokenError(ValueError):
    """A text is not the token of an event."""

    def __init__(self, token: str) -> None:
        super().__init__(
            f"{token[:80]!r} is not the token of an event: give the `token` of the last event that you have read."
        )


class Position(NamedTuple):
    """A position after an event of one run, without its sub-runs. Positions are ordered.

    Each part comes from the run itself, so every reader, in whatever process, gives an event the same position. Only
    where the text of a model is cut into deltas differs from reader to reader.
    """

    next: int = 0
    """The offset of the next stored event."""
    attempt: int = 0
    """The attempt of the model call whose text was read, since the last stored event; 0: none."""
    seen: int = 0
    """How many characters that the attempt has written were read: see `LiveText`."""

    @property
    def token(self) -> str:
        """The position as text: `4`, or `4.1.12` within the text of a model."""
        return f"{self.next}.{self.attempt}.{self.seen}" if self.attempt else str(self.next)


START = Position()


@dataclass
class StreamPosition:
    """The position of a reader in a run, the progress of its calls, and its sub-runs. No two events share a position.

    `reports`: the attempt and number of the newest progress that was read, by the ids of open calls. `runs`: the positions
    in open sub-runs, by the ids of their calls.
    """

    base: Position = START
    reports: dict[str, tuple[int, int]] = field(default_factory=dict)
    runs: dict[str, StreamPosition] = field(default_factory=dict)

    @classmethod
    def parse(cls, token: str) -> StreamPosition:
        """The position after the event with a token; an empty text is the beginning.

        Raises:
            EventTokenError: it is not a token.
        """
        if len(token) > MOST_CHARS or not token.isascii():
            raise EventTokenError(token)
        position, end = cls._parse(token or "0", 0, 0)
        if end != len(token or "0"):
            raise EventTokenError(token)
        return position

    @classmethod
    def _parse(cls, token: str, start: int, depth: int) -> tuple[StreamPosition, int]:
        match = _POSITION.match(token, start)
        if match is None or depth > MOST_DEPTH:
            raise EventTokenError(token)
        position = cls(Position(*(int(part or 0) for part in match.groups())))
        end = match.end()
        while True:
            if report := _REPORT.match(token, end):
                position.reports[unquote(report[1])] = int(report[2]), int(report[3])
                end = report.end()
            elif sub_run := _SUB_RUN.match(token, end):
                inner, end = cls._parse(token, sub_run.end(), depth + 1)
                if token[end : end + 1] != ")":
                    raise EventTokenError(token)
                position.runs[unquote(sub_run[1])] = inner
                end += 1
            else:
                return position, end

    @property
    def token(self) -> str:
        """The position as visible ASCII characters: `9~call_1=1.3~call_2=(4.1.12)`."""
        if not self.reports and not self.runs:
            return self.base.token
        reports = (f"~{_name(call)}={attempt}.{number}" for call, (attempt, number) in self.reports.items())
        runs = (f"~{_name(call)}=({run.token})" for call, run in self.runs.items())
        return "".join((self.base.token, *reports, *runs))

    def pass_event(self, event: Event, base: Position) -> None:
        """Go to the position after an event of the run itself: `base`."""
        self.base = base
        match event.type:
            case "tool_progress":
                self.reports[event.call_id] = event.attempt, event.number
            case "tool_call_settled":
                self.reports.pop(event.call_id, None)
                self.runs.pop(event.call_id, None)
            case "run_ended":
                self.reports.clear()
                self.runs.clear()

    def is_new(self, report: ToolProgress) -> bool:
        """Whether a progress report has not been read yet."""
        return (report.attempt, report.number) > self.reports.get(report.call_id, (0, 0))


def _name(call_id: str) -> str:
    """A call's id, without characters that have a meaning in a token."""
    return quote(call_id, safe="").replace("~", "%7E")
