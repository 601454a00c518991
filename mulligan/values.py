"""The values of a run that users see: its result, messages, steps and progress.

All of them are in Temporal's history as JSON, so only optional fields may be added, and nothing renamed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from mulligan.schema.optional_field import optional_field

__all__ = [
    "AssistantMessage",
    "Compaction",
    "ConversationInfo",
    "Decision",
    "ErrorInfo",
    "Message",
    "Progress",
    "Repair",
    "RunResult",
    "Status",
    "Step",
    "StepCall",
    "StepResult",
    "SubRun",
    "ToolCall",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "WaitingFor",
    "well_formed",
]


def well_formed(text: object) -> object:
    """Replace lone surrogates by U+FFFD: JSON can spell them, UTF-8 (and so history and every HTTP body) cannot."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


Text = Annotated[str, BeforeValidator(well_formed)]


class ErrorInfo(BaseModel):
    """Why a call failed or an answer was rejected. docs/recovery.md shows each `kind`."""

    kind: str
    message: Text


class ToolCall(BaseModel):
    """A call that the model made. `arguments` is the raw text that the model wrote, valid or not."""

    id: str
    name: Text
    arguments: Text


class UserMessage(BaseModel):
    """A message to the model from a person, or from the program that started the run."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["user"]
    text: Text


class AssistantMessage(BaseModel):
    """An answer of the model: text, calls, or both. `provider_data`: data to send back to that provider unchanged."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["assistant"]
    text: Text = ""
    tool_calls: list[ToolCall] = []
    provider_data: dict[str, JsonValue] | None = optional_field()


class ToolMessage(BaseModel):
    """The result of one call, as the model gets it."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["tool"]
    call_id: str
    name: Text
    text: Text
    error: ErrorInfo | None = None


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Usage(BaseModel):
    """Tokens, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = optional_field(0)
    """Input tokens that were written to the provider's cache; some models have a price for them."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    def __sub__(self, part: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) - getattr(part, name) for name in Usage.model_fields})

    @property
    def total_tokens(self) -> int:
        """Input and output together: what `max_total_tokens` bounds."""
        return self.input_tokens + self.output_tokens


Status = Literal[
    "completed", "max_steps", "max_tokens", "max_cost", "max_repeats", "max_history", "truncated", "refused", "stopped"
]
"""`max_repeats`: the model made the same failing call in too many consecutive steps.
`max_history`: Temporal's history of the run is nearly full, and its conversation is too large to continue as new."""


class RunResult(BaseModel):
    """The result of a run. Running out of steps is a status, not an exception."""

    status: Status
    output: Any = None
    steps: int = 0
    tool_calls: int = 0
    recovered_failures: int = 0
    repairs: int = 0
    usage: Usage = Usage()
    trace_id: str = ""
    output_type: str | None = optional_field()
    """Structured output: the name of its type, by which `output_of` finds a union's member."""
    cost: float | None = optional_field()
    """USD; None where the price of a model that was called is not known."""
    reason: str | None = optional_field()
    """Why it was stopped, if a reason was given."""


class Repair(BaseModel):
    """One change of a call's arguments before it ran. `by`: the fixer or the model that changed them."""

    by: str
    before: Any = None
    after: Any = None


class StepResult(BaseModel):
    """The result of a call, as the model got it."""

    text: str
    error: ErrorInfo | None = None


class Took(BaseModel):
    """What a run used until it failed: answered model calls, tokens, and USD where all prices are known."""

    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = optional_field()


class SubRun(BaseModel):
    """The run of a sub-agent that a call started. `id`: its workflow id; `run_id`: that of its first workflow run.

    `status`: `running`, a RunResult's, or `failed`, `cancelled`, `timed_out`, `terminated`. The numbers are set once it
    has ended with a result, or has failed.
    """

    id: str
    agent: str
    run_id: str = ""
    status: str = "running"
    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = optional_field()


class Decision(BaseModel):
    """The decision on a call that waited for a person, `since` when and `at` when (ISO 8601, UTC).

    `timeout`: nobody decided in time. `stopped`: the run was stopped first. `before`: the model's arguments, where a person
    `edited` them.
    """

    kind: Literal["approval", "question"]
    decision: Literal["approve", "deny", "answer", "timeout", "stopped"]
    since: str
    at: str
    by: str | None = None
    reason: str | None = None
    edited: bool = False
    before: Any = None


class StepCall(BaseModel):
    """A call within a step. `arguments` are the validated ones, after repair; None where they never became valid.

    `run` is set where the call started a sub-agent.
    """

    id: str
    name: str
    raw_arguments: str
    arguments: Any = None
    repairs: list[Repair] = []
    result: StepResult | None = None
    attempts: int = 0
    run: SubRun | None = optional_field()
    decision: Decision | None = optional_field()


class Compaction(BaseModel):
    """How the conversation was compacted before a step: `text` is a model's summary of its oldest `messages` (their number).

    With an `error` the compaction failed: the run went on with the whole conversation and tries again later.
    """

    messages: int
    text: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class Step(BaseModel):
    """One model call with the tool calls in its answer."""

    step: int
    text: str = ""
    usage: Usage = Usage()
    tool_calls: list[StepCall] = []
    error: ErrorInfo | None = None
    compaction: Compaction | None = optional_field()
    model: str | None = None
    """The model that answered, as `provider:NAME`; None in runs that an older version opened."""


class WaitingFor(BaseModel):
    """What a run waits for, `since` when (ISO 8601, UTC). `detail` is one sentence for people.

    `callback`: a result that comes from outside. `timer`: a point in time. `worker`: nothing runs until a worker is there.
    """

    kind: Literal["worker", "model", "tool", "person", "callback", "timer"]
    since: str
    detail: str
    next_attempt: str | None = optional_field()
    """When a failed call is tried again (ISO 8601, UTC)."""
    retried_for: float | None = optional_field()
    """For how many seconds after its first failure a model call is retried."""
    attempt: int | None = optional_field()
    """The number of the attempt, from the second on. It and the following fields are added by clients."""
    last_failure: str | None = optional_field()
    """Why the attempt before failed, in one line."""
    until: str | None = optional_field()
    """Until when a model call is retried (ISO 8601, UTC)."""
    last_heartbeat: str | None = optional_field()
    """What the tool has reported last (`ctx.heartbeat`)."""
    run: str | None = optional_field()
    """The id of the sub-agent's run that waits, where a run only waits for that one."""


class ConversationInfo(BaseModel):
    """One agent of a workflow with several. `conversation`: its number, which queries and updates accept."""

    conversation: str
    agent: str
    status: str


class Progress(BaseModel):
    """The result of the `progress` query."""

    status: Status | Literal["running", "waiting", "failed", "cancelled"]
    step: int
    max_steps: int
    usage: Usage
    tool_calls: int
    recovered_failures: int
    running: list[str] = []
    cost: float | None = optional_field()
    """USD so far; None as in the RunResult."""
    waiting_for: WaitingFor | None = None
    """What the run waits for; None if it has ended, or only has work of its own to do."""
    conversations: list[ConversationInfo] = optional_field([])
    """The agents of a workflow that has several."""
