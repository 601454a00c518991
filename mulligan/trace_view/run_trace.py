"""Finds a run's trace: in Jaeger, or else in Temporal's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from temporalio.client import Client

from mulligan.trace_view import history, history_spans, jaeger
from mulligan.trace_view.jaeger import NotJaeger, NotReachable, without_secrets
from mulligan.trace_view.trace_span import TraceSpan


@dataclass(frozen=True)
class RunTrace:
    """A run's trace. `origin`: where its spans are from, as text. `warning`: what is wrong with Jaeger, if anything."""

    trace_id: str
    spans: list[TraceSpan]
    source: Literal["jaeger", "history"]
    origin: str
    warning: str = ""


async def run_trace(client: Client, workflow_id: str, jaeger_url: str, *, is_open: bool) -> RunTrace | None:
    """The trace of a run; None if no agent of it was opened yet. Spans that are still running are always from history.

    Raises:
        Unreadable: the history cannot be decoded.
    """
    traceparent = await history.trace_of(client, client.get_workflow_handle(workflow_id))
    if not traceparent:
        return None
    trace_id = traceparent.split("-")[1]
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
    chains = await history.chains_with_sub_agents(client, workflow_id)
    recorded = [span for chain in chains for span in history_spans.spans_of(chain)]
    if not spans:
        return RunTrace(trace_id, recorded, "history", f"from Temporal's history ({why})", warning)
    known = {span.span_id for span in spans}
    running = [span for span in recorded if span.end is None and span.span_id not in known]
    return RunTrace(trace_id, spans + running, "jaeger", f"from {at}; what runs now, from Temporal's history")
