"""Rebuilds a run's spans from Temporal's history.

A history does not contain all spans: attempts before an activity's last one, the tokens of single model calls, and the
models that repair arguments are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.features import parts
from mulligan.trace_view.execution_spans import AddSpans, ExecutionSpans
from mulligan.trace_view.history_events import Execution
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.wire.agent_facts import AgentFacts

_OF_FEATURES: AddSpans = {kind: add for part in parts("trace_view") for kind, add in part.ADD_SPANS.items()}


def spans_of(executions: Sequence[Execution]) -> list[TraceSpan]:
    """The spans of a chain of workflow runs, the first one first."""
    agents: dict[str, AgentFacts] = {}
    return [span for execution in executions for span in ExecutionSpans(execution, agents).rebuild(_OF_FEATURES)]
