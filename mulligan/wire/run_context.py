"""The run that an activity works for: the first field of every activity's input."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, PlainSerializer

from mulligan.schema.optional_field import optional_field
from mulligan.wire.start_input import InheritedLabels, StartInput

AGENT_WORKFLOW = "AgentWorkflow"
"""The workflow type of a run."""
CALL_MEMO = "mulligan_call_id"
"""The key, in the memo of a run that another run's call has started, of that call."""
TRACE_HEADER = "_tracer-data"
"""The Temporal header in which the SDK's own OpenTelemetry interceptors carry the W3C context."""


def _without_defaults(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_defaults=True)


SentInput = Annotated[StartInput, PlainSerializer(_without_defaults)]
"""A run's input as activities get it: short, where it has the defaults."""


class RunContext(BaseModel):
    """The agent's name, the number of its conversation in the workflow, and the parent of the run's spans.

    `labels`: of a run that continues another one's conversation, or was forked from it.
    `trace` is a W3C traceparent. `tenant`: that of the run, whose content its references name. `user`: for whom it works.
    `client_metadata`: what the page of a customer says of itself.
    `version`: the digest of the agent's file, if the agent is one.
    `input`: the run's, without the conversation, where a function returns the agent's tools: any worker can call it again.
    """

    agent: str
    conversation: str = optional_field("0")
    trace: str
    tenant: str | None = optional_field()
    user: str | None = optional_field()
    client_metadata: dict[str, str] = optional_field({})
    labels: InheritedLabels | None = optional_field()
    version: str | None = optional_field()
    input: SentInput | None = optional_field()
