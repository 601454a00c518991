"""Points in time as text: for JSON, and as the time of day for people."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(at: float | datetime | str, timespec: str = "milliseconds") -> str:
    """A time as ISO 8601, in UTC and with `Z`. A number is seconds since the epoch; a text is one already.

    `timespec`: to what it is rounded down, as in `datetime.isoformat`.
    """
    if isinstance(at, str):
        return at
    at = at.astimezone(UTC) if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return at.isoformat(timespec=timespec).replace("+00:00", "Z")


def clock(at: float) -> str:
    """Seconds since the epoch as the time of day for people, such as `12:04 UTC`."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M UTC")
