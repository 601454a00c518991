"""What the workflow hands to its activities, and what they hand back. All of it lands in history: keep it small.

Fields may be added if they are optional; none may be renamed or given another meaning (tests/replay guards that).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue, PlainSerializer, model_validator

from mulligan.run_input import RunInput
from mulligan.values import (
    AssistantMessage,
    Decision,
    ErrorInfo,
    Repair,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from mulligan.wire.agent_facts import Definition as Definition  # handed on: most who need it need these too
from mulligan.wire.agent_facts import OutputFormat as OutputFormat
from mulligan.wire.agent_facts import ToolDefinition as ToolDefinition
from mulligan.wire.conversation_ref import Held, Ref
from mulligan.wire.model_facts import ModelFacts
from mulligan.wire.sub_agent_facts import SubAgentFacts


def _absent(value: object) -> bool:
    """Whether a field that says nothing can be left out of history."""
    return value is None or value == []


def _is_false(value: object) -> bool:
    return value is False


OPEN_RUN, CALL_MODEL, CALL_TOOL, RECORD_LOST_CALL, FINISH_RUN = (
    "open_run",
    "call_model",
    "call_tool",
    "record_lost_call",
    "finish_run",
)
"""Temporal's activity types: the workflow asks by name and so never imports what has side effects."""
TRACE_HEADER = "_tracer-data"
"""The Temporal header in which the SDK's own OpenTelemetry interceptors carry the W3C context."""
INPUT_QUERY = "mulligan_input"
"""The query for the RunInput of a conversation's newest turn, where it was too large to be handed over."""
DEFINITION_QUERY = "mulligan_definition"
"""The query for the definition that was pinned when the run opened, where the worker's own code has moved on."""


def tool_message(call: ToolCall, text: str, error: ErrorInfo | None) -> ToolMessage:
    """The message of a call's result: made by the worker that holds it and by the workflow that keeps it, alike."""
    return ToolMessage(role="tool", call_id=call.id, name=call.name, text=text, error=error)


class Where(BaseModel):
    """What every activity of a run is told: whose it is, and the trace that its spans belong to (W3C traceparent)."""

    agent: str
    conversation: str = Field(default="0", exclude_if=lambda value: value == "0")
    trace: str


class ToolFacts(SubAgentFacts):
    """How the workflow schedules a tool. Seconds. `queue_timeout`: how long it may wait for a worker to take it. `mcp`:
    an MCP server's own name for its tool, as in Definition.
    """

    timeout: float
    queue_timeout: float | None = Field(default=None, exclude_if=_absent)
    attempts: int = 1
    task_queue: str | None = Field(default=None, exclude_if=_absent)
    local: bool = False
    approval_timeout: float | None = Field(default=None, exclude_if=_absent)
    mcp: str | None = Field(default=None, exclude_if=_absent)


class AgentFacts(ModelFacts):
    """How the workflow schedules a run: pinned when it opens, so that a deploy does not bend a run in flight. Seconds."""

    max_steps: int
    max_total_tokens: int | None = Field(default=None, exclude_if=_absent)
    model_timeout: float
    model_patience: float
    model_attempts: int | None = Field(default=None, exclude_if=_absent)
    tools: dict[str, ToolFacts]
    definition: Definition
    digest: str
    structured: bool = Field(default=False, exclude_if=_is_false)
    guarded: bool = Field(default=False, exclude_if=_is_false)
    compact_at: int | None = Field(default=None, exclude_if=_absent)
    compact_model: str | None = Field(default=None, exclude_if=_absent)
    compacts_given: bool = Field(default=False, exclude_if=_is_false)
    """Messages that the run was given may be summed up before its first step: not in a run that was opened without this."""
    carry_bytes: int | None = Field(default=None, exclude_if=_absent)
    """What continue-as-new may carry, where that is more than one of Temporal's payloads: there is external storage."""
    model_task_queue: str | None = Field(default=None, exclude_if=_absent)
    """Where model calls go that have limits of their own; None: to the run's own task queue."""


class OpenRun(BaseModel):
    """Resolve an agent and open its trace. `input` is None where it is too large to be handed over twice: ask for it."""

    agent: str
    conversation: str
    turn: int = 1
    input: RunInput | None
    first_run_id: str
    parent: str | None = None
    call_id: str | None = Field(default=None, exclude_if=_absent)


class OpenedRun(BaseModel):
    """What `open_run` found."""

    facts: AgentFacts
    trace: str


class ConversationAsked(BaseModel):
    """What an activity is told of the conversation that it is about; no part of this grows with it.

    The worker that called the model last holds the first `known` messages. `new` comes after them; it is left out where it
    is just the results of the last message's calls, which the workers that ran the tools hold, and where it is too large to
    travel. Whatever a worker does not hold, it asks the workflow for; the digest of the `whole` says that all is right.
    """

    where: Where
    known: int | None = Field(default=None, exclude_if=_absent)
    new: list[Annotated[UserMessage | AssistantMessage | ToolMessage | Held, Field(discriminator="role")]] | None = (
        Field(default=None, exclude_if=_absent)
    )
    whole: Ref


class ModelCall(ConversationAsked):
    """Ask the model for the next step. Seconds: left out where they are what most agents have; in history for good.

    `summed_up`: how many answers of the model a compaction took out of the conversation; the ids of their calls are taken.
    `fallback`: how many models were asked for this step in vain.
    """

    model: str
    definition: str
    step: int
    patience: float = Field(default=3600.0, exclude_if=lambda value: value == 3600.0)
    timeout: float = Field(default=300.0, exclude_if=lambda value: value == 300.0)
    attempts: int | None = Field(default=None, exclude_if=_absent)
    on_invalid_tool_input: str | None = Field(default=None, exclude_if=_absent)
    guard: GuardContext | None = Field(default=None, exclude_if=_absent)
    summed_up: int | None = Field(default=None, exclude_if=_absent)
    fallback: int = Field(default=0, exclude_if=lambda value: value == 0)


class GuardContext(BaseModel):
    """What a guard's ToolContext is made of: only sent where there is a guard."""

    metadata: dict[str, str]


class PreparedCall(BaseModel):
    """A call after it was looked at once: valid arguments, or what the model is told, or why the run fails.

    `arguments` is None where they are just what the raw text says. One with a `text` is settled: no tool runs for it.
    """

    arguments: JsonValue = Field(default=None, exclude_if=_absent)
    repairs: list[Repair] = Field(default=[], exclude_if=_absent)
    text: str | None = Field(default=None, exclude_if=_absent)
    error: ErrorInfo | None = Field(default=None, exclude_if=_absent)
    failure: dict[str, Any] | None = Field(default=None, exclude_if=_absent)
    waits: Literal["approval", "question"] | None = Field(default=None, exclude_if=_absent)
    """For what it waits before it is settled: a person's approval, or answer."""


class FoundOutput(BaseModel):
    """The structured output that an answer holds: valid, and the run's. `value` is left out where it is `as_said`:
    the arguments of the call number `call`, or the text.
    """

    type: str
    call: int | None = Field(default=None, exclude_if=_absent)
    as_said: bool = Field(default=False, exclude_if=_is_false)
    value: JsonValue = None


class Rejected(BaseModel):
    """An answer that was not taken, though no call is to blame: what the model is told as a user's message."""

    text: str
    error: ErrorInfo
    failure: dict[str, Any] | None = Field(default=None, exclude_if=_absent)


def _brief(value: BaseModel) -> dict[str, Any]:
    """As JSON without what is as it is mostly: each answer stands in history, and there are thousands."""
    return value.model_dump(mode="json", exclude_defaults=True)


class ModelAnswer(BaseModel):
    """What the model said; `prepared` has one entry for each of the message's calls, in their order.

    It is left out where every call is valid as the model wrote it. `others`: what of the usage was for second models.
    """

    message: Annotated[AssistantMessage, PlainSerializer(_brief)]
    prepared: list[PreparedCall] = Field(default=[], exclude_if=lambda value: not any(map(_brief, value)))
    finish_reason: str = Field(default="tool_calls", exclude_if=lambda value: value == "tool_calls")
    usage: Annotated[Usage, PlainSerializer(_brief)]
    output: FoundOutput | None = Field(default=None, exclude_if=_absent)
    rejected: Rejected | None = Field(default=None, exclude_if=_absent)
    others: dict[str, Usage] = Field(default={}, exclude_if=lambda value: not value)

    @model_validator(mode="after")
    def _each_call_prepared(self) -> ModelAnswer:
        self.prepared = self.prepared or [PreparedCall() for _ in self.message.tool_calls]
        return self


class CallTool(BaseModel):
    """Run one valid call. Its raw text is in history already, so `call.arguments` is empty here."""

    where: Where
    call: ToolCall
    arguments: JsonValue
    repaired_by: list[str] = Field(default=[], exclude_if=_absent)
    step: int
    metadata: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
    max_bytes: int | None = Field(default=None, exclude_if=_absent)
    """Of the result: where the results of all calls of the step would be too much for history."""
    decision: Decision | None = Field(default=None, exclude_if=_absent)
    """By whom it was approved."""
    mcp: str | None = Field(default=None, exclude_if=_absent)


class ToolOutcome(BaseModel):
    """What came of a call: a success of the activity, whatever the tool did. `failure`: the policy fails the run."""

    text: str = ""
    error: ErrorInfo | None = Field(default=None, exclude_if=_absent)
    failure: dict[str, Any] | None = Field(default=None, exclude_if=_absent)
    attempts: int = 1
    unsettled: dict[str, Any] | None = Field(default=None, exclude_if=_absent)
    """The typed error, where the tool's worker does not know the agent and so not its policy: the agent's worker does."""


class LostCall(BaseModel):
    """Record a failed call whose worker could not, and find the text for it by the agent's policy."""

    where: Where
    call: ToolCall
    kind: str
    message: str
    attempts: int
    step: int
    started: float
    failure: dict[str, Any] | None = Field(default=None, exclude_if=_absent)


class FinishRun(BaseModel):
    """Close a run's trace: what it came to."""

    where: Where
    turn: int = 1
    status: str
    steps: int
    recovered_failures: int
    usage: Usage
    cost: float | None = Field(default=None, exclude_if=_absent)
    error_type: str | None = Field(default=None, exclude_if=_absent)
