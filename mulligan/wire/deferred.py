"""Calls of deferred tools: the update that brings their result, and the activities for their end.

Any client sends the update as JSON, and all of it is in history: only optional fields may be added.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.wire.tool_call import CallRequest, ToolOutcome

COMPLETE = "complete"
"""Temporal's name of the update."""
SETTLE_DEFERRED, CANCEL_DEFERRED = "settle_deferred", "cancel_deferred"
"""Temporal's activity types."""
ERROR_CHARS = 32_768
"""Characters of the error that ends a call."""

DeferredEnd = Literal["result", "error", "timeout", "time", "message", "stopped", "cancelled"]
"""What has ended the wait of a call. `time`, `message`: of a call that waits for a point in time."""


class Complete(BaseModel):
    """The end of a call that waits for its result: exactly one of `result` and `error`."""

    model_config = ConfigDict(extra="forbid")

    call_id: Annotated[str, Field(min_length=1, max_length=1_000)]
    """The id of the call."""
    result: JsonValue = None
    """The call's result: at most 1,000,000 bytes as JSON."""
    error: Annotated[WellFormedText, Field(min_length=1, max_length=ERROR_CHARS)] | None = None
    """Why there is no result; the model reads it as a `tool_error`."""
    conversation: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    """The number of the agent, in a workflow with several of them."""
    trace_id: Annotated[str, Field(max_length=100)] | None = None
    """The trace id of the run that made the call; a run with another one refuses."""

    @property
    def is_error(self) -> bool:
        """Whether it brings an error."""
        return self.error is not None


class SettleDeferred(CallRequest):
    """Input of `settle_deferred`, which writes the span of a call and returns its result; and of `cancel_deferred`.

    `started`: when its body began, in seconds since the epoch; `since`: when it had returned `text`. `timeout`: seconds, of
    a call whose time is over. `seconds_waited`, `seconds_left`: of a call that waited for a point in time. `body`: how the
    body failed, of a call that was completed before. `workflow_id`: the run's, as another workflow may have the activity.
    """

    workflow_id: str
    arguments: JsonValue
    started: float
    end: DeferredEnd
    attempts: int = 1
    text: str = ""
    result: JsonValue = None
    error: str | None = None
    timeout: float | None = None
    seconds_waited: float = 0.0
    seconds_left: float = 0.0
    reason: str | None = None
    body: ToolOutcome | None = None
    metadata: dict[str, str] = optional_field({})
    mcp: str | None = None
    max_bytes: int | None = None
    digest: str
    first_key: str | None = None


def has_result(argument: Any) -> bool:
    """Whether the argument of the update has a result, which may be null."""
    return isinstance(argument, dict) and "result" in argument


WORDS = FeatureWords(activities=(SETTLE_DEFERRED, CANCEL_DEFERRED))
