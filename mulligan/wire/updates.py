"""What people say to a run, and what it asks of them: the words of its updates, its query, and the activities behind them.

These are JSON to any client; orders of activities land in history, so only optional fields may be added.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from mulligan.schema.optional_field import optional_field
from mulligan.values import Decision, Text, ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import ToolOutcome

__all__ = [
    "Answer",
    "CheckEdit",
    "CheckedEdit",
    "Decide",
    "Pending",
    "RecordDecision",
    "RecordedDecision",
    "SendMessage",
    "Stop",
]

SEND_MESSAGE, DECIDE, ANSWER, STOP, PENDING = "send_message", "decide", "answer", "stop", "pending"
"""Temporal's names of the updates (`stop` is a signal too) and of the query."""
RECORD_DECISION, CHECK_EDIT = "record_decision", "check_edit"
"""Temporal's activity types."""

MESSAGE_BYTES = 1_000_000
"""UTF-8 bytes of a message, an answer, or edited arguments as JSON: what Temporal carries ends at 2 MB."""
SHORT_CHARS = 1_000
"""Characters of an id, a name or a reason."""

Short = Annotated[Text, Field(max_length=SHORT_CHARS)]
Key = Annotated[str, Field(min_length=1, max_length=SHORT_CHARS)]


def iso(at: float) -> str:
    """Seconds since the epoch as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


class _Said(BaseModel):
    """`conversation`: which agent of a workflow that holds several is meant, by its number (`pending` shows it)."""

    model_config = ConfigDict(extra="forbid")

    conversation: Key | None = None


class SendMessage(_Said):
    """A message for the agent. The same `id` twice is one message; without one, each update is its own."""

    text: Annotated[Text, Field(min_length=1)]
    id: Key | None = None


class Decide(_Said):
    """What a person says to a call that waits for approval. `arguments`: what it shall run with instead."""

    call_id: Key
    decision: Literal["approve", "deny"]
    reason: Short | None = None
    arguments: dict[str, JsonValue] | None = None
    by: Short | None = None


class Answer(_Said):
    """A person's answer to a question of the agent."""

    call_id: Key
    text: Annotated[Text, Field(min_length=1)]
    by: Short | None = None


class Stop(_Said):
    """End the run with grace."""

    reason: Short | None = None
    by: Short | None = None


class Pending(BaseModel):
    """A call that waits for a person. `since` and `until` (when nobody's word is taken any more) are ISO 8601, UTC."""

    call_id: str
    tool: str
    arguments: Any
    kind: Literal["approval", "question"]
    since: str
    text: str
    agent: str
    step: int
    until: str | None = optional_field()
    conversation: str = optional_field("0")


class RecordDecision(BaseModel):
    """Put a decision on the trace. `run`: whether the call runs now; if not, say what the model is told in its place.

    `started`: when the call began to wait, in seconds since the epoch.
    """

    where: RunContext
    call: ToolCall
    arguments: JsonValue
    step: int
    decision: Decision
    answer: str | None = None
    run: bool = False
    repaired_by: list[str] = optional_field([])
    started: float


class RecordedDecision(ToolOutcome):
    """What came of it: with whose decision it is, for who reads it in history (a local activity's order is not there)."""

    trace: str
    call_id: str
    name: str
    step: int
    started: float
    decision: Decision


class CheckEdit(BaseModel):
    """Look at edited arguments as at a model's: are they valid, and does the guard let them pass?"""

    where: RunContext
    call: ToolCall
    arguments: dict[str, JsonValue]
    step: int
    definition: str
    metadata: dict[str, str] = optional_field({})


class CheckedEdit(BaseModel):
    """The edited arguments in the form of their types; or why they are not taken."""

    arguments: JsonValue = None
    refused: str | None = optional_field()
