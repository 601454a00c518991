"""What the workflow and the worker hand each other when a sub-agent's run is over. In history, as all of handoff."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from mulligan.schema.optional_field import optional_field
from mulligan.values import Decision, SubRun, ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import ToolOutcome

__all__ = ["AGENT_WORKFLOW", "CALL_MEMO", "RECORD_SUB_RUN", "RecordSubRun", "SubRunOutcome"]

RECORD_SUB_RUN = "record_sub_run"
"""Temporal's activity type."""
AGENT_WORKFLOW = "AgentWorkflow"
"""The workflow type of a run."""
CALL_MEMO = "mulligan_call"
"""The key, in a sub-agent's memo, of the call that it is the run of."""


class RecordSubRun(BaseModel):
    """Put a sub-agent's call on the trace, now that it is over, and find the text for the model where it went wrong.

    `run` says how it ended; its `status` may also be `not_started` or `too_deep`. `text` is what it came to: its last words
    where it did not complete. `reason` and `failure` (a typed error as JSON) say why it has none. `limit`: seconds that it
    might take; 0: as many as it liked. `cancelled`: the calling run is, so nobody is told.
    """

    where: RunContext
    call: ToolCall
    step: int
    started: float
    repaired_by: list[str] = []
    arguments: Any = None
    run: SubRun
    text: str = ""
    reason: str = ""
    failure: dict[str, Any] | None = None
    limit: float = 0
    decision: Decision | None = None
    cancelled: bool = False


class SubRunOutcome(ToolOutcome):
    """What the model is told; `text` is left out where it is just what the run came to.

    With whose call it is, for who reads it in history (a local activity's order is not there). `sub_run`: the run's id.
    """

    trace: str
    call_id: str
    name: str
    step: int
    started: float
    repaired_by: list[str] = optional_field([])
    sub_run: str = optional_field("")
    as_given: bool = optional_field(False)
