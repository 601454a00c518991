"""A run's steps over time, as rectangles: the template draws them as SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from mulligan.run_view.step_view import CallView, StepView

WIDTH = 320.0
"""Units of the drawing for the whole time."""
ROW = 22
"""Units between two rows."""
LONGEST_PAUSE = 0.12
"""Of the time in which something ran: how long a pause is drawn at most. Nights of waiting would hide the steps."""
_WAITS_FOR = {"timer": "a point in time"}
SHORTEST = 3.0
"""Units that the shortest bar has."""


@dataclass(frozen=True)
class Bar:
    """A time in a step. `kind`: `model`, `tool`, `run` (a sub-agent's) or `wait`."""

    kind: str
    x: float
    width: float
    title: str
    is_mistake: bool = False


@dataclass(frozen=True)
class TimelineRow:
    """A step, at `y`."""

    step: StepView
    y: int
    bars: list[Bar]


@dataclass(frozen=True)
class Timeline:
    """The drawing. `pauses`: where time is left out, as (x, seconds)."""

    rows: list[TimelineRow]
    seconds: float
    pauses: list[tuple[float, float]] = field(default_factory=list)
    width: float = WIDTH

    @property
    def height(self) -> int:
        """The drawing's height, in its units."""
        return len(self.rows) * ROW


@dataclass(frozen=True)
class _Span:
    kind: str
    start: float
    end: float
    title: str
    is_mistake: bool


def draw_timeline(steps: list[StepView], now: datetime) -> Timeline:
    """The drawing of these steps. What has not ended, ends `now`."""
    spans = [(step, _spans(step, now)) for step in steps]
    scale = _Scale([span for _, each in spans for span in each])
    rows = []
    for number, (step, each) in enumerate(spans):
        bars = [_bar(span, scale) for span in sorted(each, key=lambda span: span.kind != "wait")]
        rows.append(TimelineRow(step, number * ROW, bars))
    return Timeline(rows, scale.seconds, scale.pauses)


def _bar(span: _Span, scale: _Scale) -> Bar:
    start, end = scale.place(span.start), scale.place(span.end)
    start = min(start, WIDTH - SHORTEST)
    return Bar(span.kind, round(start, 1), round(max(end - start, SHORTEST), 1), span.title, span.is_mistake)


def _spans(step: StepView, now: datetime) -> list[_Span]:
    started, answered = step.started or now, step.answered or now
    title = f"step {step.number}: model {step.model}, {_seconds(started, answered)}"
    spans = [_span("model", started, answered, title, is_mistake=step.rejected is not None)]
    for call in step.calls.values():
        spans += _spans_of_call(call, now)
    return spans


def _spans_of_call(call: CallView, now: datetime) -> list[_Span]:
    spans = []
    for wait in call.waits:
        end = wait.decided.at if wait.decided else call.settled or now
        spans.append(
            _span("wait", wait.asked.at, end, f"{call.name}: waits for a person, {_seconds(wait.asked.at, end)}")
        )
    start, end = call.started or (call.settled if call.settled else None), call.settled or now
    if call.deferred is not None:
        returned, what = call.deferred.at, _WAITS_FOR.get(call.deferred.deferred.kind, "its result")
        spans.append(_span("wait", returned, end, f"{call.name}: waits for {what}, {_seconds(returned, end)}"))
        end = returned
    if start is not None:
        failed = f", {call.error.kind}" if call.error else ""
        title = f"step {call.step}: {call.name}{failed}, {_seconds(start, end)}"
        spans.append(_span("run" if call.run else "tool", start, end, title, is_mistake=call.is_mistake))
    return spans


def _span(kind: str, start: datetime, end: datetime, title: str, *, is_mistake: bool = False) -> _Span:
    return _Span(kind, start.timestamp(), max(start, end).timestamp(), title, is_mistake)


def _seconds(start: datetime, end: datetime) -> str:
    return f"{max(0.0, (end - start).total_seconds()):.1f} s"


class _Scale:
    """From times to places, with long pauses, in which nothing but waits is open, drawn shorter."""

    def __init__(self, spans: list[_Span]) -> None:
        times = sorted({time for span in spans for time in (span.start, span.end)})
        self._places = dict.fromkeys(times, 0.0)
        self.seconds = times[-1] - times[0] if times else 0.0
        self.pauses: list[tuple[float, float]] = []
        intervals = list(pairwise(times))
        busy = _busy(spans, intervals)
        longest = max(sum(end - start for (start, end), is_busy in zip(intervals, busy, strict=True) if is_busy), 1.0)
        longest *= LONGEST_PAUSE
        lengths = [
            end - start if is_busy else min(end - start, longest)
            for (start, end), is_busy in zip(intervals, busy, strict=True)
        ]
        unit = WIDTH / (sum(lengths) or 1.0)
        for (start, end), length in zip(intervals, lengths, strict=True):
            self._places[end] = self._places[start] + length * unit
            if end - start > length:
                self.pauses.append((round((self._places[start] + self._places[end]) / 2, 1), end - start))

    def place(self, time: float) -> float:
        """Where a time is drawn: each is the start or the end of a span."""
        return self._places[time]


def _busy(spans: list[_Span], intervals: list[tuple[float, float]]) -> list[bool]:
    """Whether a model or a tool runs in each interval."""
    changes: dict[float, int] = {}
    for span in spans:
        if span.kind != "wait":
            changes[span.start] = changes.get(span.start, 0) + 1
            changes[span.end] = changes.get(span.end, 0) - 1
    open_spans, busy = 0, []
    for start, _ in intervals:
        open_spans += changes.get(start, 0)
        busy.append(open_spans > 0)
    return busy
