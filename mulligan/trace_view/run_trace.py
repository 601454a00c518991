"""Finds a run's trace: its spans in Jaeger, or else those of the one reading of the run (`mulligan/run_view`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from temporalio.client import Client

from mulligan.client.wait_reader import WaitReader, is_without_worker
from mulligan.observe import semconv
from mulligan.trace_view import jaeger
from mulligan.trace_view.jaeger import NotJaeger, NotReachable, without_secrets
from mulligan.trace_view.read_spans import NoReadingError, read_spans
from mulligan.trace_view.trace_id import read_trace_id
from mulligan.trace_view.trace_span import TraceSpan


@dataclass(frozen=True)
class RunTrace:
    """A run's trace. `origin`: where its spans are from, as text. `warning`: what is wrong with Jaeger, if anything.

    `waits_for`: what an open run waits for.
    """

    trace_id: str
    spans: list[TraceSpan]
    source: Literal["jaeger", "run"]
    origin: str
    warning: str = ""
    waits_for: str = ""


async def run_trace(client: Client, workflow_id: str, jaeger_url: str, *, is_open: bool) -> RunTrace | None:
    """The trace of a run; None if no agent of it was opened yet. Spans that are still running are always from the run.

    Raises:
        UnreadableError: the history cannot be decoded.
    """
    trace_id = await read_trace_id(client, client.get_workflow_handle(workflow_id))
    if not trace_id:
        return None
    url, warning = jaeger_url or jaeger.DEFAULT_URL, ""
    at = f"Jaeger at {without_secrets(url)}"
    try:
        spans = await jaeger.spans_of(trace_id, url)
        why = f"{at} does not have it"
    except NotReachable as error:
        spans, why = [], f"{at} does not answer"
        # A Jaeger at the default address is optional; one whose address was set should be there.
        warning = f"{why}: {error}" if jaeger_url else ""
    except NotJaeger as error:
        spans, why = [], f"{at} cannot be understood"
        warning = f"what answers at {without_secrets(url)} does not answer as Jaeger does ({error})"
    if spans and not is_open:
        return RunTrace(trace_id, spans, "jaeger", f"from {at}")
    waiting = await WaitReader(client).read_or_none(workflow_id) if is_open else None
    waits_for = waiting.detail if waiting else ""
    try:
        if is_without_worker(waiting):
            raise NoReadingError("no worker of the run answers")
        read = await read_spans(client, workflow_id, trace_id)
    except NoReadingError as error:
        if not spans:
            return RunTrace(trace_id, [], "run", f"{why}, and {error}", warning, waits_for)
        origin = f"from {at}; what runs now is not known, as {error}"
        return RunTrace(trace_id, spans, "jaeger", origin, waits_for=waits_for)
    if not spans:
        return RunTrace(trace_id, read, "run", f"from the run's events ({why})", warning, waits_for)
    origin = f"from {at}; what runs now, from the run's events"
    return RunTrace(trace_id, [*spans, *running_of(read, spans)], "jaeger", origin, waits_for=waits_for)


def running_of(read: Sequence[TraceSpan], known: Sequence[TraceSpan]) -> Iterator[TraceSpan]:
    """What runs now, of which Jaeger has at most attempts that have failed."""
    for span in read:
        before = [each for each in known if _subject(each) == _subject(span)]
        if span.end is not None or not all(each.is_error and not each.is_recovered for each in before):
            continue
        if before:
            number = 1 + max(each.attempt for each in before)
            attributes = {**span.attributes, semconv.ATTEMPT: number}
            span = replace(span, span_id=f"{span.span_id}.{number}", attributes=attributes)
        yield span


def _subject(span: TraceSpan) -> tuple[Any, ...]:
    """What the attempts of a call have in common."""
    return span.name, span.parent_id, span.step, span.attributes.get(semconv.AI_ID)
