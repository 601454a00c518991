"""The run that an activity works for: the first field of every activity's input."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.schema.optional_field import optional_field

__all__ = ["AGENT_WORKFLOW", "CALL_MEMO", "TRACE_HEADER", "RunContext"]

AGENT_WORKFLOW = "AgentWorkflow"
"""The workflow type of a run."""
CALL_MEMO = "mulligan_call"
"""The key, in the memo of a run that another run's call has started, of that call."""
TRACE_HEADER = "_tracer-data"
"""The Temporal header in which the SDK's own OpenTelemetry interceptors carry the W3C context."""


class RunContext(BaseModel):
    """The agent's name, the number of its conversation in the workflow, and the parent of the run's spans.

    `trace` is a W3C traceparent. `tenant`: that of the run, whose content its references name.
    """

    agent: str
    conversation: str = optional_field("0")
    trace: str
    tenant: str | None = optional_field()
