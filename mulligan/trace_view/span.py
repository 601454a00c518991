"""A span as it is drawn, wherever it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from mulligan.observe import semconv

__all__ = ["TraceSpan", "of_this_process"]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span. Times are seconds since the epoch; `end` is None while it runs. `message` goes with its status."""

    span_id: str
    parent_id: str
    name: str
    start: float
    end: float | None
    is_error: bool = False
    message: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int | None:
        """The step of the run that it belongs to."""
        step = self.attributes.get(semconv.STEP)
        return step if isinstance(step, int) else None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return asdict(self)


def of_this_process(spans: Iterable[ReadableSpan]) -> list[TraceSpan]:
    """Spans that this process has made and ended."""
    return [
        TraceSpan(
            span_id=f"{span.context.span_id:016x}",
            parent_id=f"{span.parent.span_id:016x}" if span.parent else "",
            name=span.name,
            start=(span.start_time or 0) / 1e9,
            end=(span.end_time or 0) / 1e9,
            is_error=not span.status.is_ok,
            message=span.status.description or "",
            attributes=dict(span.attributes or {}),
        )
        for span in spans
        if span.context is not None
    ]
