"""The position of a reader in a run's events, and its text: the token of an event."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["START", "EventTokenError", "Position"]

_TOKEN = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})\.([0-9]{1,15}))?")


class EventTokenError(ValueError):
    """A text is not the token of an event."""


class Position(NamedTuple):
    """A position after an event. Positions of one run are ordered, and no two of its events have the same.

    Each part comes from the run itself, so every reader, in whatever process, gives an event the same position. Only
    where the text of a model is cut into deltas differs from reader to reader.
    """

    next: int = 0
    """The offset of the next stored event."""
    attempt: int = 0
    """The attempt of the model call whose text was read, since the last stored event; 0: none."""
    seen: int = 0
    """How many characters of that attempt's text were read."""

    @classmethod
    def parse(cls, token: str) -> Position:
        """The position after the event with a token; an empty text is the beginning.

        Raises:
            EventTokenError: it is not a token.
        """
        match = _TOKEN.fullmatch(token or "0")
        if match is None:
            raise EventTokenError(
                f"{token[:80]!r} is not the token of an event: give the `token` of the last event that you have read."
            )
        return cls(*(int(part or 0) for part in match.groups()))

    @property
    def token(self) -> str:
        """The token of the event before this position."""
        return f"{self.next}.{self.attempt}.{self.seen}" if self.attempt else str(self.next)


START = Position()
