"""Durations: as users give them, in seconds or as a timedelta, and as text for people."""

from __future__ import annotations

from datetime import timedelta


def seconds(duration: float | timedelta) -> float:
    """A duration as seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def as_timedelta(duration: float | timedelta) -> timedelta:
    """A duration as a timedelta."""
    return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)


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
