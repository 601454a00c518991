"""The values of a run that users see: its result, messages, steps and progress.

All of them are in Temporal's history as JSON, so only optional fields may be added, and nothing renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal

from pydantic import BaseModel, FailFast, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeVar

from mulligan.content import Media, Part, Parts, text_of
from mulligan.content import Text as TextPart
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText, well_formed

__all__ = [
    "AssistantMessage",
    "Citation",
    "ConversationInfo",
    "Decision",
    "ErrorInfo",
    "HostedCall",
    "Message",
    "OutputT",
    "Progress",
    "Repair",
    "RunResult",
    "Spent",
    "Status",
    "Step",
    "StepCall",
    "StepCompaction",
    "StepResult",
    "SubRun",
    "ToolCall",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "WaitingFor",
    "well_formed",
]

OutputT = TypeVar("OutputT", covariant=True, default=Any)
"""The type of a run's output, for type checkers: of the agent's `output=`. Any where it is not known."""


class ErrorInfo(BaseModel):
    """Why a call failed or an answer was rejected. docs/recovery.md shows each `kind`."""

    kind: WellFormedText
    message: WellFormedText
    """One text for people and the model. It quotes no input value."""


class ToolCall(BaseModel):
    """A call that the model made.

    In a message, a call that was repaired, or edited by a person, has the name and arguments that it was executed with,
    and so the model reads it. A step also has the arguments as the model wrote them; a name that was repaired is in the
    `repairs` of its call.
    """

    id: str
    """The model's id of the call, at most 64 characters."""
    name: WellFormedText
    """The name of the tool; if there is no such tool, the name that the model wrote."""
    arguments: WellFormedText
    """The arguments as JSON; if they are not valid, the raw text that the model wrote."""


def _agree(message: Any) -> Any:
    """Check that a message has a text or content, and give both the same text, so that readers of `text` have all of it."""
    if message.content is None:
        if "text" not in message.model_fields_set:
            raise PydanticCustomError("text_missing", "a message needs a text or content")
        return message
    text = text_of(message.content)
    if message.text and not text:
        message.content = [TextPart(text=message.text), *message.content]
    elif message.text not in ("", text):
        raise PydanticCustomError("text_differs", "the text of the content must be the text")
    else:
        message.text = text
    return message


class UserMessage(BaseModel):
    """A message to the model from a person, or from the program that started the run."""

    role: Literal["user"]
    text: WellFormedText = ""
    """The text of the message; of its content, the text alone."""
    content: Parts | None = optional_field()
    """Its parts, if it has others than a text."""

    _agree = model_validator(mode="after")(_agree)

    @classmethod
    def of(cls, prompt: str | Sequence[TextPart | Media]) -> UserMessage:
        """The message for a `prompt`: a text, or parts."""
        return cls(role="user", text=prompt) if isinstance(prompt, str) else cls(role="user", content=list(prompt))


class AssistantMessage(BaseModel):
    """An answer of the model: text, calls, or both. `provider_data`: data to send back to that provider unchanged."""

    role: Literal["assistant"]
    text: WellFormedText = ""
    """What the model wrote; empty if it only made calls."""
    tool_calls: Annotated[list[ToolCall], FailFast()] = []
    """The calls that it made, in its order."""
    provider_data: dict[str, JsonValue] | None = optional_field()
    files: Parts | None = optional_field()
    """The images and files that its provider has made, and sentences in the place of what could not be kept of them."""


class ToolMessage(BaseModel):
    """The result of one call, as the model gets it."""

    role: Literal["tool"]
    call_id: str
    """The id of the call that it answers."""
    name: WellFormedText
    """The name of the tool."""
    text: WellFormedText = ""
    """The result, or the feedback on the failure; of its content, the text alone."""
    error: ErrorInfo | None = None
    """Why the call failed; None if it did not."""
    content: Parts | None = optional_field()
    """The parts of the result, if it has others than a text."""

    _agree = model_validator(mode="after")(_agree)


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
"""A message of a conversation, of the type that its `role` names."""


def parts_of(message: Message) -> Sequence[Part]:
    """The parts of a message: of an answer, the files that its provider has made."""
    return (message.files if isinstance(message, AssistantMessage) else message.content) or ()


class Usage(BaseModel):
    """Tokens, as the provider counted them, or estimated."""

    input_tokens: int = 0
    """All input tokens, those from a cache included."""
    output_tokens: int = 0
    """All output tokens, those of reasoning included."""
    cached_input_tokens: int = 0
    """Input tokens that the provider read from its cache."""
    reasoning_tokens: int = 0
    """Output tokens that the model used to reason."""
    cache_write_tokens: int = optional_field(0)
    """Input tokens that were written to the provider's cache; some models have a price for them."""
    tier: str = optional_field("")
    """The service tier at whose prices the provider answered: `flex`, `priority`, `batch` …; "": its standard one. A sum has
    that of its first part, a run's total none."""
    estimated: bool = optional_field(False)
    """Whether they, or a part of them, are an estimate by sizes (4 bytes a token), as the endpoint did not count them."""

    def __add__(self, other: Usage) -> Usage:
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return Usage(tier=self.tier, estimated=self.estimated or other.estimated, **counts)

    def __sub__(self, part: Usage) -> Usage:
        counts = {name: getattr(self, name) - getattr(part, name) for name in COUNTS}
        return Usage(tier=self.tier, estimated=self.estimated, **counts)

    @property
    def total_tokens(self) -> int:
        """Input and output together: what `max_total_tokens` bounds."""
        return self.input_tokens + self.output_tokens


COUNTS = tuple(name for name in Usage.model_fields if name not in ("tier", "estimated"))
"""The fields of a usage that are numbers of tokens."""
Status = Literal[
    "completed", "max_steps", "max_repeats", "max_tokens", "max_cost", "max_history", "stopped", "truncated", "refused",
    "diverged",
]  # fmt: skip
"""How a run ended with a result. `max_repeats`: the model made the same failing call in too many consecutive steps.
`max_history`: Temporal's history of the run is nearly full, and its conversation is too large to continue as new.
`diverged`: a run that repeats another one made a call of which that one has no record."""


class RunResult(BaseModel, Generic[OutputT]):
    """The result of a run. Running out of steps is a status, not an exception.

    `RunResult[Refund]` has a `Refund` as its `output`, for example as the `result_type` of a Temporal client's call.
    """

    status: Status | str
    """How the run ended; `completed` if the model gave its final answer."""
    output: OutputT = None  # type: ignore[assignment]  # of a run that did not complete
    """A text; or the structured output: an object of the agent's output type where that type is known, otherwise its JSON.
    None where the run has another status than `completed` and has none."""
    steps: int = 0
    """Model calls that were answered."""
    tool_calls: int = 0
    """Tool calls, those that failed included."""
    recovered_failures: int = 0
    """Failed calls and rejected answers that were returned to the model as feedback."""
    repairs: int = 0
    """How many changes fixers and Mulligan made to calls' arguments."""
    usage: Usage = Usage()
    """Tokens of all model calls, sub-agents included."""
    trace_id: str = ""
    """The id of its trace: 32 hexadecimal digits."""
    output_type: str | None = optional_field()
    """Structured output: the name of its type, by which `output_of` finds a union's member."""
    cost: float | None = optional_field()
    """USD; None where the price of a model that was called is not known."""
    counted: float = optional_field(0.0)
    """USD that `max_cost` has counted, where `cost` is None."""
    reason: str | None = optional_field()
    """Why it was stopped, if a reason was given; why an answer was refused, in the word of the provider (`cyber`, `SAFETY`);
    where it diverged, the first call without a record.
    """
    sub_runs: int = optional_field(0)
    """Runs of sub-agents below it, at all levels. One that ended without its own number counts as many as it was allowed."""
    trust: Literal["untrusted"] | str | None = optional_field()
    """`untrusted` if the model has read results that others may have written."""


class Repair(BaseModel):
    """One change of a call before it ran. `by`: what changed it: `name`, a kind of repair, a fixer, or a model."""

    by: str
    before: Any = None
    """The arguments before, raw text where they were not JSON; with `name`, the name that the model wrote."""
    after: Any = None
    """The arguments after it; with `name`, the name of the tool."""


class StepResult(BaseModel):
    """The result of a call, as the model got it."""

    text: str
    """The text that the model got."""
    error: ErrorInfo | None = None
    """Why the call failed; None if it did not."""
    content: list[Part] = optional_field([])
    """The parts of the result, if it has others than a text; `data` is left out, and `ref` is the digest of the bytes."""
    trust: Literal["untrusted"] | str | None = optional_field()
    """`untrusted` if others may have written it (docs/hostile-content.md)."""


class Consumption(BaseModel):
    """What a run used until it failed: answered model calls, tokens, USD where all prices are known, runs of sub-agents."""

    steps: int = 0
    """Model calls that were answered."""
    usage: Usage = Usage()
    """Tokens of all model calls."""
    cost: float | None = optional_field()
    """USD; None where the price of a model is not known."""
    counted: float = optional_field(0.0)
    """As in RunResult."""
    sub_runs: int = optional_field(0)
    """Runs of sub-agents below it."""


class SubRun(BaseModel):
    """The run of a sub-agent that a call started. `id`: its workflow id; `run_id`: that of its first workflow run.

    `status`: `running`, a RunResult's, or `failed`, `cancelled`, `timed_out`, `terminated`. The numbers are set once it
    has ended with a result, or has failed.
    """

    id: str
    agent: str
    """The name of the sub-agent."""
    run_id: str = ""
    status: str = "running"
    steps: int = 0
    """Its model calls that were answered."""
    usage: Usage = Usage()
    """Its tokens."""
    cost: float | None = optional_field()
    """USD; None where the price of a model is not known."""


class RuleUse(BaseModel):
    """The rule by which a call was approved: its `name`. `by` and `at`: who made it, and when (ISO 8601, UTC)."""

    name: str
    by: str | None = optional_field()
    at: str


class Decision(BaseModel):
    """The decision on a call that waited for a person, `since` when and `at` when (ISO 8601, UTC).

    `timeout`: nobody decided in time. `stopped`: the run was stopped first. `before`: the model's arguments, where a person
    `edited` them.
    """

    kind: Literal["approval", "question"] | str
    """What the call waited for."""
    decision: Literal["approve", "deny", "answer", "timeout", "stopped"] | str
    """What was decided, or what ended the waiting."""
    since: str
    at: str
    by: str | None = optional_field()
    """Who decided; None where nobody was named."""
    reason: str | None = optional_field()
    """Why, in the words of the person."""
    edited: bool = optional_field(False)
    before: Any = Field(default=None, exclude_if=lambda before: before is None)
    edited_by: str | None = optional_field()
    """Who edited the arguments, if somebody else decided on the edited ones."""
    role: str | None = optional_field()
    """The role that whoever approves must have."""
    rule: RuleUse | None = optional_field()
    """The rule that has approved the call, in place of a person."""


class AnsweredQuestion(BaseModel):
    """A question that a call's MCP server asked a person. `content`: the answer, where there is one."""

    text: str
    """The question."""
    content: Any = None
    decision: Decision
    """Who answered it and when, or what ended the waiting."""


class Deferred(BaseModel):
    """What a call of a deferred tool has started, and from `since` to at most `until` (ISO 8601, UTC) it waits."""

    kind: Literal["callback", "timer"] | str
    """Whether it waits to be completed, or for a point in time."""
    started: str
    """What the tool returned, as text."""
    since: str
    until: str | None = optional_field()


def is_inner_call(call_id: str) -> bool:
    """Whether another call has made it, as a script does: `CALL.n` is number n of `CALL`. Other ids have no full stop."""
    return "." in call_id


class StepCall(BaseModel):
    """A call within a step. `arguments` are the validated ones, after repair; None where they never became valid.

    `run` is set where the call started a sub-agent.
    """

    id: str
    """The call's id."""
    name: str
    """The name of the tool."""
    raw_arguments: str
    """The arguments as the model wrote them."""
    arguments: Any = None
    repairs: list[Repair] = []
    """The changes of the name and of the arguments, in their order."""
    result: StepResult | None = None
    """None while the call runs or waits."""
    attempts: int = 0
    """How often the tool was started; 0 if it was not run."""
    run: SubRun | None = optional_field()
    decision: Decision | None = optional_field()
    """The person's decision, if it waited for one."""
    questions: list[AnsweredQuestion] = optional_field([])
    """The questions that its MCP server asked people, in their order."""
    deferred: Deferred | None = optional_field()
    """What it has started, of a call of a deferred tool."""
    recorded: bool = optional_field(False)
    """Whether its result is that of an equal call of the run that this one was forked from."""
    argument_digests: list[str] = optional_field([])
    """The digests by which its arguments are compared (docs/once.md): of those it runs with, and last of the model's.
    None where it is that of `arguments` as JSON."""
    calls: list[StepCall] = optional_field([])
    """The calls that it has made itself, of a script (docs/code-mode.md)."""


class StepCompaction(BaseModel):
    """How the conversation was compacted before a step: `text` is a model's summary of its oldest `messages` (their number).

    With an `error` the compaction failed: the run went on with the whole conversation and tries again later.
    """

    messages: int
    text: str = ""
    usage: Usage = Usage()
    """Tokens of the call that wrote the summary."""
    error: ErrorInfo | None = None


class HostedCall(BaseModel):
    """A call that the provider carried out itself: a web search, code that ran there. No tool of the agent ran."""

    id: str
    """The provider's id of the call; "" where it gives none."""
    name: str
    """What was called: `web_search`, or the name of a tool of a server that the provider has called."""
    arguments: str
    """Its arguments as JSON, cut where they are long."""
    status: str
    """`completed`, `failed`, or the provider's own word."""


class Citation(BaseModel):
    """A source that an answer names."""

    url: str
    """Its address; "" of a document that has none."""
    title: str
    """The title of the page, or the name of the file."""
    text: str | None = optional_field()
    """The part of the source that is cited, if the provider quotes it."""
    start: int | None = optional_field()
    """Where the part of the answer's text that it supports begins, in characters; None where the provider does not say."""
    end: int | None = optional_field()
    """Where that part ends."""


class Step(BaseModel):
    """One model call with the tool calls in its answer."""

    step: int
    """Its number, from 1."""
    text: str = ""
    """What the model wrote."""
    usage: Usage = Usage()
    """Tokens of the model call."""
    tool_calls: list[StepCall] = []
    """The calls of the answer, in its order."""
    error: ErrorInfo | None = None
    """Why the answer was rejected, if no call of it is at fault."""
    compaction: StepCompaction | None = optional_field()
    """How the conversation was compacted before the step."""
    model: str
    """The model that answered, as `provider:NAME`."""
    agent: str = ""
    """The name of the agent whose step it is: that of the run, or the one that it was handed over to."""
    version: str = optional_field("")
    """The digest of the agent's file, if the agent is one."""
    label: str = optional_field("")
    """The label by which that version was chosen."""
    shared: bool = optional_field(False)
    """Whether it is a step of the run that this one was forked from: nothing of it was repeated."""
    hosted_calls: list[HostedCall] = optional_field([])
    """The calls that the provider carried out itself, in their order."""
    citations: list[Citation] = optional_field([])
    """The sources that the answer names, in their order."""
    files: list[Part] = optional_field([])
    """The images and files that the provider has made, as the `content` of a result, and sentences on what was not kept."""
    finish_reason: str = optional_field("")
    """The endpoint's own word for why the answer ended, where it is none that is known."""
    adapted: list[str] = optional_field([])
    """Words for how requests to the model differ from those to others, as its endpoint's refusals have said: `short_ids`,
    `image_as_text` (docs/models.md)."""


class WaitingFor(BaseModel):
    """What a run waits for, `since` when (ISO 8601, UTC). `detail` is one sentence for people.

    `callback`: a result that comes from outside. `timer`: a point in time. `worker`: nothing runs until a worker is there.
    """

    kind: Literal["worker", "model", "tool", "person", "callback", "timer"] | str
    """What it waits for."""
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
    """The agent's name."""
    status: str
    """As in its own progress; `not_started` before its first turn."""


class Spent(BaseModel):
    """What several turns have used."""

    usage: Usage
    """Tokens of their model calls."""
    cost: float | None
    """USD; None as in the RunResult."""

    def __add__(self, other: Spent) -> Spent:
        cost = None if self.cost is None or other.cost is None else round(self.cost + other.cost, 12)
        return Spent(usage=self.usage + other.usage, cost=cost)


class Progress(BaseModel):
    """The result of the `progress` query."""

    status: str
    """The newest turn's: `running`, `waiting` (for nothing but people, callbacks and timers), or how it ended."""
    step: int
    """The number of the newest step; 0 before the first."""
    max_steps: int
    """How many model calls it may make."""
    usage: Usage
    """Tokens of the model calls so far."""
    tool_calls: int
    """Tool calls so far."""
    recovered_failures: int
    """Failed calls and rejected answers so far that were returned to the model."""
    running: list[str] = []
    """The names of the tools that are running, one per call."""
    cost: float | None = optional_field()
    """USD so far; None as in the RunResult."""
    waiting_for: WaitingFor | None = None
    """What the run waits for; None if it has ended, or only has work of its own to do."""
    all_turns: Spent | None = optional_field()
    """What all turns of all agents of the workflow have used so far; None if there was one turn of one agent."""
    conversations: list[ConversationInfo] = optional_field([])
    """The agents of a workflow that has several."""
