"""Every value that users see in a run: what it takes, what it gives, and the conversation between.

All of it lands in Temporal's history as JSON, so only optional fields may be added, and nothing renamed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from mulligan.schema.optional_field import optional_field

__all__ = [
    "AssistantMessage",
    "Compaction",
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
    """What went wrong with a call or an answer, in the words of the contract's kinds."""

    kind: str
    message: Text


class ToolCall(BaseModel):
    """What the model asked for. `arguments` is the raw text that the model wrote, whatever it is."""

    id: str
    name: Text
    arguments: Text


class UserMessage(BaseModel):
    """What a person, or the program that started the run, says to the model."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["user"]
    text: Text


class AssistantMessage(BaseModel):
    """What the model said: text, calls, or both. `provider_data`: what must go back to that provider as it is."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["assistant"]
    text: Text = ""
    tool_calls: list[ToolCall] = []
    provider_data: dict[str, JsonValue] | None = optional_field()


class ToolMessage(BaseModel):
    """A tool result: what went back to the model for one call."""

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
    """Of the input, what was put into the provider's cache; some models have a price for it."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    def __sub__(self, part: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) - getattr(part, name) for name in Usage.model_fields})

    @property
    def total_tokens(self) -> int:
        """Input and output together: what `max_total_tokens` bounds."""
        return self.input_tokens + self.output_tokens


Status = Literal["completed", "max_steps", "max_tokens", "max_cost", "max_history", "truncated", "refused", "stopped"]
"""`max_history`: Temporal's history of the run is nearly full, and its conversation too large to go on in a new one."""


class RunResult(BaseModel):
    """What a run came to. Running out of steps is a status, not an exception."""

    status: Status
    output: Any = None
    steps: int = 0
    tool_calls: int = 0
    recovered_failures: int = 0
    repairs: int = 0
    usage: Usage = Usage()
    trace_id: str = ""
    output_type: str | None = optional_field()
    """Structured output: the name of its type, so that a union's member is known again."""
    cost: float | None = optional_field()
    """USD; None where the price of a model that was asked is not known."""
    reason: str | None = optional_field()
    """Why it was stopped, where whoever did it said so."""


class Repair(BaseModel):
    """One change of a call's arguments before it ran: `by` whom, from what, to what."""

    by: str
    before: Any = None
    after: Any = None


class StepResult(BaseModel):
    """What the model was told about a call."""

    text: str
    error: ErrorInfo | None = None


class Took(BaseModel):
    """What a run took until it failed: model calls that were answered, tokens, and USD where all prices are known."""

    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = optional_field()


class SubRun(BaseModel):
    """The run that a call of a sub-agent is: a workflow of its own, by the id `id`; `run_id` is its first workflow run's.

    `status`: `running`, a RunResult's, or `failed`, `cancelled`, `timed_out`, `terminated`. The numbers are there once it
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
    """What became of a call that waited for a person, from when until when (ISO 8601, UTC).

    `timeout`: nobody said anything in time. `stopped`: the run was stopped first. `before`: its arguments as the model
    wanted them, where they were `edited`.
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

    `run` is there where the call is one of a sub-agent.
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
    """How the conversation was made shorter before a step: `text` sums up its oldest `messages`, by a model call.

    With an `error` it was given up, for the time being: nothing was summed up, and the run went on as it was.
    """

    messages: int
    text: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class Step(BaseModel):
    """One model call with the tool calls that it asked for."""

    step: int
    text: str = ""
    usage: Usage = Usage()
    tool_calls: list[StepCall] = []
    error: ErrorInfo | None = None
    compaction: Compaction | None = optional_field()
    model: str | None = None
    """Which model answered, as `provider:NAME`; None in a run that was opened before this was kept."""


class Progress(BaseModel):
    """The answer of the `progress` query."""

    status: Status | Literal["running", "waiting", "failed", "cancelled"]
    step: int
    max_steps: int
    usage: Usage
    tool_calls: int
    recovered_failures: int
    running: list[str] = []
    cost: float | None = optional_field()
    """USD so far; None as in the RunResult."""
