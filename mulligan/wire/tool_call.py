"""`call_tool` and `record_failed_call`: a valid call, and what came of it.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

import hashlib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, JsonValue

from mulligan.content import Part, Parts
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import Decision, ErrorInfo, ToolCall, ToolMessage
from mulligan.wire.checked_result import MOST_INT, CheckedResult
from mulligan.wire.questions import Questions, Replies
from mulligan.wire.run_context import RunContext

CALL_TOOL, RECORD_FAILED_CALL = "call_tool", "record_failed_call"
"""Temporal's activity types."""


def digest_of_call(call: ToolCall) -> str:
    """What a call's idempotency key depends on beside its id, which a provider may repeat after a reset of the run."""
    return hashlib.sha256(f"{call.name}\x1f{call.arguments}".encode(errors="replace")).hexdigest()[:8]


def idempotency_key(namespace: str, workflow_id: str, run: RunContext, call_id: str, digest: str) -> str:
    """The idempotency key of a call: the same for each attempt, unique among all calls of all runs.

    After a reset of the run, a provider may repeat an id for another call: so it contains that call's `digest`.
    It contains the run's trace id, which is derived from the ids of the workflow and of the first run of its chain.
    """
    parts = (namespace, workflow_id, run.trace, run.conversation, call_id, digest)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def tool_message(call: ToolCall, text: str, error: ErrorInfo | None, content: list[Part] | None = None) -> ToolMessage:
    """The message with a call's result.

    The worker that ran the tool and the workflow build it alike, so that both compute the same digest.
    """
    return ToolMessage(role="tool", call_id=call.id, name=call.name, text=text, error=error, content=content)


class CompactCall(ToolCall):
    """A call in the input of an activity, without arguments where the activity needs none, or gets them as a value."""

    model_config = ConfigDict(from_attributes=True)

    arguments: WellFormedText = optional_field("")


def without_arguments(call: ToolCall) -> CompactCall:
    """The call by its id and its tool."""
    return CompactCall(id=call.id, name=call.name)


class CallRequest(BaseModel):
    """What the inputs of activities that work for a call have in common. `decision`: a person's on the call, if any."""

    where: RunContext
    call: CompactCall
    step: int
    repaired_by: list[str] = optional_field([])
    decision: Decision | None = optional_field()

    @classmethod
    def like(cls, other: CallRequest, **fields: Any) -> Self:
        """The input of another activity for the same call: with these fields, and those that both inputs have."""
        shared = cls.model_fields.keys() & type(other).model_fields.keys()
        return cls(**{name: getattr(other, name) for name in shared} | fields)


class CallTool(CallRequest):
    """Input of `call_tool`: run one valid call. Its raw text is in history already, so `call.arguments` is empty here."""

    arguments: JsonValue
    metadata: dict[str, str] = optional_field({})
    max_bytes: int | None = optional_field()
    """Limit of the result, where the results of all calls of the step together would be too much for history."""
    mcp: str | None = optional_field()
    digest: str
    """The digest of the call as the model wrote it, for its idempotency key."""
    first_key: str | None = optional_field()
    """The idempotency key of the first of the calls that this one repeats, where nobody knows what they have done."""
    replies: Replies | None = optional_field()
    """What people replied to the questions of the call's MCP server, where the call is continued with that."""
    pinned: dict[str, JsonValue] = optional_field({})
    """What was pinned for the feature that adds the tool."""
    has_own_queue: bool = optional_field(False)
    """Whether the tool has a task queue of its own, whose workers need not serve the agent."""
    in_script: bool = optional_field(False)
    """Whether a script reads the result, and not the model: it is not cut to what the model may read."""
    after_untrusted: bool = optional_field(False)
    """Whether the script had read a result that others may have written when it made the call. Its own result counts so."""


class Deferral(BaseModel):
    """What the body of a deferred tool has started. The call has no result yet.

    `text`: the body's return value as text, which is JSON unless the body returned a text. `until`: the end of a wait for a
    point in time, in seconds since the epoch; None: the call waits to be completed. `timeout`: seconds that it may wait, as
    the tool is declared where its body has run.
    """

    text: WellFormedText
    until: float | None = optional_field()
    timeout: float | None = optional_field()


class ToolOutcome(CheckedResult):
    """Result of `call_tool`: the activity succeeds with it, whatever the tool did. `failure`: the policy fails the run."""

    text: WellFormedText = ""
    error: ErrorInfo | None = optional_field()
    failure: dict[str, Any] | None = optional_field()
    attempts: int = optional_field(1)
    failure_without_policy: dict[str, Any] | None = optional_field()
    """The typed error, where the tool's worker does not know the agent, and so not its policy: the agent's worker does."""
    content: Parts | None = optional_field()
    """The parts of the result, if it has others than a text; `text` is their text alone."""
    questions: Questions | None = optional_field()
    """What the call's MCP server asks a person. The call has no result yet: it is continued with the replies."""
    deferred: Deferral | None = optional_field()
    """What a deferred tool has started."""
    untrusted: bool = optional_field(False)
    """Whether others may have written it."""
    is_cut: bool = optional_field(False)
    """Whether `text` is only the beginning of it."""

    def fault(self) -> str | None:
        """Why the outcome cannot be used: its attempts are shown."""
        return None if 0 <= self.attempts <= MOST_INT else "its attempts are no count"


class FailedCall(CallRequest):
    """Input of `record_failed_call`: write the span of a call whose worker could not, or that was not run, and apply the
    agent's policy.

    `detail`: the part of the feedback that may quote input or results. `started`: seconds since the epoch. `written`: how
    many of its first attempts have their spans; None: all but the last.
    """

    kind: str
    message: str
    detail: str = optional_field("")
    attempts: int
    written: int | None = optional_field()
    started: float
    failure: dict[str, Any] | None = optional_field()
    on_invalid_tool_input: str | None = optional_field()
