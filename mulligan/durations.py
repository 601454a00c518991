"""Durations that users give as seconds or as a timedelta."""

from __future__ import annotations

from datetime import timedelta

__all__ = ["as_timedelta", "seconds"]


def seconds(duration: float | timedelta) -> float:
    """A duration as seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def as_timedelta(duration: float | timedelta) -> timedelta:
    """A duration as a timedelta."""
    return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
