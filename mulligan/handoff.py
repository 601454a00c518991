"""What the workflow hands to its activities, and what they hand back. All of it lands in history: keep it small.

Fields may be added if they are optional; none may be renamed or given another meaning (tests/replay guards that).
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue

from mulligan.values import (
    AssistantMessage,
    ErrorInfo,
    Message,
    Repair,
    RunInput,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)


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
CONVERSATION_QUERY = "mulligan_conversation"
"""The query by which a worker asks a workflow for messages that its cache does not hold."""
INPUT_QUERY = "mulligan_input"
"""The query for the RunInput of a conversation's newest turn, where it was too large to be handed over."""
DEFINITION_QUERY = "mulligan_definition"
"""The query for the definition that was pinned when the run opened, where the worker's own code has moved on."""


def chain(digest: str, message: BaseModel) -> tuple[str, int]:
    """The digest of a conversation with one more message, and that message's size in bytes as JSON.

    Workflow and worker each compute it, so what a worker holds is known to be what the workflow means.
    """
    encoded = message.model_dump_json().encode()
    return hashlib.sha256(digest.encode() + encoded).hexdigest()[:16], len(encoded)


def tool_message(call: ToolCall, text: str, error: ErrorInfo | None) -> ToolMessage:
    """The message of a call's result: made by the worker that holds it and by the workflow that keeps it, alike."""
    return ToolMessage(role="tool", call_id=call.id, name=call.name, text=text, error=error)


def idempotency_key(namespace: str, workflow_id: str, first_run_id: str, conversation: str, call_id: str) -> str:
    """The same for each attempt of a call, also in a chain of runs; another for every other call of every other run."""
    parts = (namespace, workflow_id, first_run_id, conversation, call_id)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


class Ref(BaseModel):
    """A conversation by its length and the chained digest of its messages: what a worker may hold in its cache."""

    count: int
    digest: str


class Where(BaseModel):
    """What every activity of a run is told: whose it is, and the trace that its spans belong to (W3C traceparent)."""

    agent: str
    conversation: str
    trace: str


class ToolDefinition(BaseModel):
    """A tool as the model is shown it."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


class OutputFormat(BaseModel):
    """The JSON schema that the provider makes the model's answer keep to."""

    name: str
    description: str = ""
    json_schema: dict[str, JsonValue]


class Definition(BaseModel):
    """What the provider is told of an agent in each request: pinned when the run opens. Output tools are tools here."""

    instructions: str
    tools: list[ToolDefinition]
    output: OutputFormat | None = Field(default=None, exclude_if=_absent)


class ToolFacts(BaseModel):
    """How the workflow schedules a tool. Seconds. `queue_timeout`: how long it may wait for a worker to take it."""

    timeout: float
    queue_timeout: float | None = Field(default=None, exclude_if=_absent)
    attempts: int = 1
    task_queue: str | None = Field(default=None, exclude_if=_absent)
    local: bool = False


class AgentFacts(BaseModel):
    """How the workflow schedules a run: pinned when it opens, so that a deploy does not bend a run in flight. Seconds."""

    model: str
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


class OpenedRun(BaseModel):
    """What `open_run` found."""

    facts: AgentFacts
    trace: str


class Held(BaseModel):
    """A tool result by its call's id alone: the worker that made it holds it, so that it stands in history once."""

    role: Literal["held"]
    call_id: str


class ModelCall(BaseModel):
    """Ask the model for the next step. The worker has `prefix`, or asks the workflow for it; `new` comes after it.

    `new` is None where it is too large to travel: then the worker asks for that as well, as for `Held` that it has not.
    """

    where: Where
    model: str
    definition: str
    step: int
    prefix: Ref
    new: list[Annotated[UserMessage | AssistantMessage | ToolMessage | Held, Field(discriminator="role")]] | None
    whole: Ref
    patience: float
    timeout: float
    attempts: int | None = Field(default=None, exclude_if=_absent)
    on_invalid_tool_input: str | None = Field(default=None, exclude_if=_absent)
    guard: GuardContext | None = Field(default=None, exclude_if=_absent)


class GuardContext(BaseModel):
    """What a guard's ToolContext is made of: only sent where there is a guard."""

    first_run_id: str
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


class ModelAnswer(BaseModel):
    """What the model said; `prepared` has one entry for each of the message's calls, in their order."""

    message: AssistantMessage
    prepared: list[PreparedCall] = Field(default=[], exclude_if=_absent)
    finish_reason: str
    usage: Usage
    output: FoundOutput | None = Field(default=None, exclude_if=_absent)
    rejected: Rejected | None = Field(default=None, exclude_if=_absent)


class CallTool(BaseModel):
    """Run one valid call. Its raw text is in history already, so `call.arguments` is empty here."""

    where: Where
    call: ToolCall
    arguments: JsonValue
    repaired_by: list[str] = Field(default=[], exclude_if=_absent)
    step: int
    key: str
    metadata: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)


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
    error_type: str | None = Field(default=None, exclude_if=_absent)


class PageAsked(BaseModel):
    """A worker asks the workflow for messages of a conversation that it does not hold: `count` of them, from `since`."""

    conversation: str
    since: int
    count: int


class Page(BaseModel):
    """Messages from the one asked for on, as many as fit into an answer."""

    messages: list[Message]
