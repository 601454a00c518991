"""The events of what a model is writing, from the newest heartbeat of its call."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from mulligan.wire.event_types import PART_GAP, LiveCall, LivePart, LiveText, TextDelta, ToolInputDelta


def live_events(text: LiveText, seen: int, step: int, at: datetime) -> Iterator[tuple[TextDelta | ToolInputDelta, int]]:
    """What a reader has not seen yet, each event with how many characters were seen after it.

    Args:
        text: What the model has written.
        seen: How many characters of the same attempt the reader has seen.
        step: The number of the step.
        at: When it was sent.
    """
    end = LivePart(at=text.start + len(text.text) + len(PART_GAP), start=0)
    for part, following in pairwise([LivePart(at=0, start=0), *text.parts, end]):
        if part.call is not None and part.start == 0 and part.at > seen:
            yield _event(text, part, part.at, "", step, at), part.at
        first, last = max(part.at, seen, text.start), following.at - len(PART_GAP)
        if piece := text.text[first - text.start : max(0, last - text.start)]:
            yield _event(text, part, first, piece, step, at), first + len(piece)


def _event(
    text: LiveText, part: LivePart, first: int, piece: str, step: int, at: datetime
) -> TextDelta | ToolInputDelta:
    call: LiveCall | None = part.call
    written = {"at": at, "step": step, "attempt": text.attempt, "start": part.start + first - part.at, "text": piece}
    return TextDelta(**written) if call is None else ToolInputDelta(**written, **call.model_dump())
