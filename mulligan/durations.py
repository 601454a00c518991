"""Durations: as users give them, in seconds or as a timedelta, and as text for people."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

MOST_SECONDS = 10**9
"""Of a duration that somebody declares: 31 years."""


def seconds(duration: float | timedelta) -> float:
    """A duration as seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def as_timedelta(duration: float | timedelta) -> timedelta:
    """A duration as a timedelta."""
    return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)


def is_duration(given: Any, *, least: float = 0.0, most: float = MOST_SECONDS) -> bool:
    """Whether a value is a duration of more than 0 seconds, and of `least` or more, that is not longer than `most`."""
    if isinstance(given, bool) or not isinstance(given, int | float | timedelta):
        return False
    if isinstance(given, int) and given > most:  # too large for a float, perhaps
        return False
    return math.isfinite(length := seconds(given)) and 0 < length <= most and length >= least


def duration_text(seconds: float) -> str:
    """A duration in its one or two largest units."""
    seconds = max(0.0, seconds)  # the clocks of two machines differ
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours < 24 else f"{hours // 24} d {hours % 24:02} h"
