"""What the feature does on workers: a span for each quiet time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity

from .waiting import NoteQuiet


def activities(services: Any) -> Sequence[Callable[..., Any]]:
    @activity.defn
    async def note_quiet(request: NoteQuiet) -> None:
        with services.telemetry.span(request.where, "quiet_hours.over", request.call_id, tool=request.tool):
            pass

    return (note_quiet,)
