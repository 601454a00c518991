"""A span of a trace that is shown, from Jaeger, from the reading of a run, or from this process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from mulligan.observe import semconv
from mulligan.observe.spans import SpanDefinition, SpanFailure


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span. Times are seconds since the epoch; `end` is None while it runs. `message`: its status's description."""

    span_id: str
    parent_id: str
    name: str
    start: float
    end: float | None
    is_error: bool = False
    message: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_definition(
        cls,
        definition: SpanDefinition,
        start: float,
        end: float | None,
        failure: SpanFailure | None = None,
        message: str = "",
    ) -> TraceSpan:
        """A span as a worker writes it. `message`: what a running one waits for."""
        return cls(
            span_id=f"{definition.span_id:016x}",
            parent_id=definition.parent.split("-")[2] if definition.parent else "",
            name=definition.name,
            start=start,
            end=end,
            is_error=failure is not None,
            message=message if failure is None else failure.text,
            attributes={**definition.attributes, **(failure.all_attributes if failure else {})},
        )

    @property
    def step(self) -> int | None:
        """The step of the run that it belongs to."""
        step = self.attributes.get(semconv.STEP)
        return step if isinstance(step, int) else None

    @property
    def attempt(self) -> int:
        """Which attempt of a call it is, from 1."""
        attempt = self.attributes.get(semconv.ATTEMPT)
        return attempt if isinstance(attempt, int) else 1

    @property
    def is_recovered(self) -> bool:
        """Whether it is an error that a model was told of."""
        return self.is_error and self.attributes.get(semconv.RECOVERED) is True

    def to_json(self) -> dict[str, Any]:
        """The span's fields as JSON."""
        return asdict(self)


def from_sdk_spans(spans: Iterable[ReadableSpan]) -> list[TraceSpan]:
    """The spans that OpenTelemetry's SDK has written in this process."""
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
