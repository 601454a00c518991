"""The events of a run, typed.

The workflow stores which events happened and when; the query `events` takes their texts from the conversation. The text
that a model is still writing is only in the heartbeats of its call. docs/events.md says how any client reads both.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, TypeAdapter

from mulligan.content import Part
from mulligan.schema.optional_field import optional_field
from mulligan.values import (
    Citation,
    Deferred,
    ErrorInfo,
    HostedCall,
    Repair,
    RuleUse,
    RunResult,
    StepResult,
    SubRun,
    ToolCall,
    Usage,
)

__all__ = [
    "EVENT",
    "EVENTS_QUERY",
    "EVENT_TYPES",
    "LIVE_TEXT",
    "TOOL_PROGRESS",
    "AnswerRejected",
    "Answered",
    "Compacted",
    "Decided",
    "Edited",
    "Event",
    "HandedOver",
    "LiveCall",
    "LivePart",
    "LiveText",
    "MessageReceived",
    "ModelFallback",
    "ProgressMark",
    "Reminder",
    "RunEnded",
    "RunStarted",
    "StepStarted",
    "Stopping",
    "SubRunEvent",
    "SubRunSource",
    "TextCursor",
    "TextDelta",
    "TextVoid",
    "ToolCallDeferred",
    "ToolCallRepaired",
    "ToolCallSettled",
    "ToolCallStarted",
    "ToolInputDelta",
    "ToolProgress",
    "Waiting",
]

EVENTS_QUERY = "events"
"""Temporal's name of the query that returns a page of events."""
ATTEMPT_ENDED = "mulligan.attempt_ended"
"""The field of a heartbeat's detail that is a number: the spans of the attempts up to this one are written."""
LIVE_TEXT = "mulligan.live_text"
"""The field of a heartbeat's detail that contains a `LiveText`."""


PART_GAP = "\n\n"
"""What stands between two parts of a `LiveText`."""
TOOL_PROGRESS = "mulligan.tool_progress"
"""The field of a heartbeat's detail that contains a `ProgressMark`. The progress itself is the detail before it."""
INTERNAL_DETAILS = frozenset({ATTEMPT_ENDED, LIVE_TEXT, TOOL_PROGRESS})
"""The fields of details that are no report of a tool."""


class ProgressMark(BaseModel):
    """Whose progress a heartbeat reports."""

    call_id: str
    """The call's id."""
    name: str
    """The name of the tool."""
    step: int
    """The number of the step, from 1."""
    attempt: int
    """The number of the call's attempt, from 1."""
    number: int
    """How many reports the attempt has sent, with this one."""


class TextCursor(BaseModel):
    """How far the stream of a background response was read: after the event with a sequence number of the provider."""

    sequence: int
    """The number of the last event that was read."""
    length: int = optional_field(0)
    """The characters of text that came until then."""
    message: int | None = optional_field()
    """The number of the output item that the last text belongs to; None: there was none yet."""


class LiveCall(BaseModel):
    """A call that a model is writing."""

    index: int
    """The number of the call in the answer, from 0."""
    name: str
    """The name of the tool, as the model has written it."""
    call_id: str = optional_field("")
    """The id that the call will have; "": the model has written none yet."""
    may_wait: bool = optional_field(False)
    """Whether the call may wait, for a person or to be completed, before or after it runs; or has no tool of this name."""


class LivePart(BaseModel):
    """Where a part of what a model writes begins: its text, or the arguments of a call."""

    at: Annotated[int, Field(ge=0, lt=10**12)]
    """How many characters of what the model has written come before it, with the empty line in between."""
    start: int
    """How many characters of the same text, or the same arguments, come before it."""
    call: LiveCall | None = optional_field()
    """Whose arguments they are; None: it is text."""


class LiveText(BaseModel):
    """The end of what a model has written so far, after its first `start` characters (Unicode code points).

    It is the answer's text, and the arguments of its calls where `parts` says so, in the order in which they are written,
    with an empty line before each part but the first.
    """

    conversation: str
    """The number of the agent in its workflow."""
    step: int
    """The number of the step, from 1."""
    attempt: int
    """The number of the attempt of the model call, from 1."""
    start: int
    text: str
    """What the model has written from there on."""
    parts: list[LivePart] = optional_field([])
    """The parts, in their order; empty: it is text from the beginning on."""
    cursor: TextCursor | None = optional_field()
    """Where the stream of a background response continues after this text."""


class _Event(BaseModel):
    """Any event."""

    token: str | None = optional_field()
    """`follow(since=…)` continues after this event."""
    at: datetime
    """When it happened (UTC)."""


class _StoredEvent(_Event):
    """An event that the workflow stores."""

    offset: int
    """Its number in the run, from 0; it never changes."""


class _LiveEvent(_Event):
    """An event of a step that the workflow does not store."""

    step: int
    """The number of the step, from 1."""


class _StepEvent(_StoredEvent):
    """A stored event of a step."""

    step: int
    """The number of the step, from 1."""


class _CallEvent(_StepEvent):
    """A stored event of a call."""

    call_id: str
    """The call's id."""
    name: str
    """The name of the tool."""


class RunStarted(_StoredEvent):
    """A turn began: the only one of an `AgentWorkflow`, one of many of a `DurableAgent`."""

    type: Literal["run_started"] = "run_started"
    turn: int
    """The number of the turn, from 1."""
    agent: str
    """The agent's name."""
    model: str
    """The model, as `provider:NAME`."""
    max_steps: int
    """How many model calls the turn may make."""


class Compacted(_StepEvent):
    """The conversation's oldest `messages` were summarized before a step; with an `error` they were not."""

    type: Literal["compacted"] = "compacted"
    messages: int
    text: str = ""
    """The summary."""
    usage: Usage = Usage()
    """Tokens of the call that wrote it."""
    error: ErrorInfo | None = None


class StepStarted(_StepEvent):
    """A model is called."""

    type: Literal["step_started"] = "step_started"
    model: str
    """The model, as `provider:NAME`."""


class ModelFallback(_StepEvent):
    """`model` is called in place of the step's model, which failed by `error`. The text of the failed call is void."""

    type: Literal["model_fallback"] = "model_fallback"
    model: str
    error: ErrorInfo


class HandedOver(_StoredEvent):
    """A call has handed the conversation over: `agent` has it from the next step on, and calls `model`."""

    type: Literal["handed_over"] = "handed_over"
    step: int
    """The number of the step with the call, from 1."""
    call_id: str
    """The call's id."""
    name: str
    """The name of the tool."""
    from_agent: str
    """The name of the agent that had the conversation."""
    agent: str
    """The name of the agent that has it now."""
    model: str
    """The model, as `provider:NAME`."""


class TextDelta(_LiveEvent):
    """A part of the text that a model is writing, after the first `start` characters (Unicode code points) of `attempt`.

    A client that began late may miss what came before: `answered` has the whole text.
    """

    type: Literal["text_delta"] = "text_delta"
    attempt: int
    start: int
    text: str
    """The part."""


class ToolInputDelta(_LiveEvent):
    """A part of the arguments of a call that a model is writing, after their first `start` characters (Unicode code points).

    The call begins with an event whose `text` is empty. A client that began late may miss what came before, and models write
    faulty arguments too: `answered` has all of them, and `tool_call_started` those with which the tool runs.
    """

    type: Literal["tool_input_delta"] = "tool_input_delta"
    attempt: int
    """The number of the attempt of the model call, from 1."""
    index: int
    """The number of the call in the answer, from 0."""
    name: str
    """The name of the tool, as the model has written it."""
    start: int
    text: str
    """The part."""
    call_id: str = optional_field("")
    """The id that the call will have; "": it is not known yet."""
    may_wait: bool = optional_field(False)
    """Whether the call may wait, for a person or to be completed; or has no tool of this name."""


class TextVoid(_LiveEvent):
    """What `attempt` has written is void: the attempt was lost or failed, and the call is retried."""

    type: Literal["text_void"] = "text_void"
    attempt: int


class Answered(_StepEvent):
    """The whole answer of the model. It replaces all `text_delta` events of the step."""

    type: Literal["answered"] = "answered"
    text: str
    """The whole text."""
    tool_calls: list[ToolCall]
    """The calls that it made, in its order."""
    usage: Usage
    """Tokens of the model call."""
    hosted_calls: list[HostedCall] = optional_field([])
    """The calls that the provider carried out itself, in their order."""
    citations: list[Citation] = optional_field([])
    """The sources that the answer names, in their order."""
    files: list[Part] = optional_field([])
    """The images and files that the provider has made; `data` is left out, and `ref` is the digest of the bytes."""


class ToolCallRepaired(_CallEvent):
    """The name or the arguments of a call were repaired."""

    type: Literal["tool_call_repaired"] = "tool_call_repaired"
    repairs: list[Repair]
    """The changes of the arguments, in their order."""


class Waiting(_CallEvent):
    """A call waits for a person: `kind` is `approval` or `question`, `text` the question to the person."""

    type: Literal["waiting"] = "waiting"
    kind: str
    arguments: Any = None
    """Its validated arguments."""
    text: str = ""


class Reminder(_CallEvent):
    """A call still waits for a person, the time of its reminder after `waiting`; `kind` and `text` are as there.

    Further ones follow at intervals that double, until the call is decided.
    """

    type: Literal["reminder"] = "reminder"
    kind: str
    arguments: Any = None
    """Its validated arguments; null after an edit, of which `text` has the beginning."""
    text: str = ""
    number: int
    """Of the reminder, from 1. Reminders that were due while no worker ran are skipped."""


class Edited(_CallEvent):
    """A person has edited the arguments of a call, which waits on, for somebody with a role that these arguments need.

    `text`: the call with them, as of `waiting`; the query `pending` has all of them.
    """

    type: Literal["edited"] = "edited"
    text: str = ""
    role: str
    """That whoever approves the edited arguments must have."""
    by: str | None = optional_field()
    """Who has edited them; None where nobody was named."""
    reason: str | None = optional_field()
    """Why, in the words of the person."""


class Decided(_CallEvent):
    """A call has stopped waiting: `approve`, `deny` or `answer`, by a person; `timeout`; `stopped` with the run.

    `edited`: with other arguments, which are those of `tool_call_started`.
    """

    type: Literal["decided"] = "decided"
    decision: str
    """One of the five above."""
    by: str | None = optional_field()
    """Who decided; None where nobody was named."""
    reason: str | None = optional_field()
    """Why, in the words of the person."""
    edited: bool = optional_field(False)
    edited_by: str | None = optional_field()
    """Who edited the arguments, if somebody else decided on the edited ones."""
    rule: RuleUse | None = optional_field()
    """The rule that has approved the call, which then did not wait."""


class ToolCallStarted(_CallEvent):
    """A call runs, with its valid arguments. A call that is settled without this event did not run: its result says why."""

    type: Literal["tool_call_started"] = "tool_call_started"
    arguments: Any = None
    """Its validated arguments."""


class ToolCallDeferred(_CallEvent):
    """A deferred tool has returned: its call waits for its result, or for a point in time."""

    type: Literal["tool_call_deferred"] = "tool_call_deferred"
    deferred: Deferred
    """What was started, and until when the call waits."""


class ToolCallSettled(_CallEvent):
    """A call has its result for the model, or in `result.error` the failure that the run recovers from."""

    type: Literal["tool_call_settled"] = "tool_call_settled"
    result: StepResult
    """What the model got."""
    attempts: int
    """How often the tool was started; 0 if it was not run."""
    run: SubRun | None = optional_field()
    """The run of the sub-agent, if the call started one."""


class ToolProgress(_Event):
    """What a running call has reported with `ctx.heartbeat`: the newest report, as those in between may be left out."""

    type: Literal["tool_progress"] = "tool_progress"
    step: int
    """The number of the step, from 1."""
    call_id: str
    """The call's id."""
    name: str
    """The name of the tool."""
    attempt: int
    """The number of the call's attempt, from 1."""
    number: int
    """How many reports the attempt had sent, with this one."""
    text: str
    """The last argument of `ctx.heartbeat`, as JSON if it is not a text."""


class AnswerRejected(_StepEvent):
    """An answer was rejected, though no call of it is at fault; the model gets feedback."""

    type: Literal["answer_rejected"] = "answer_rejected"
    error: ErrorInfo
    """What was wrong with it."""


class MessageReceived(_StoredEvent):
    """A message was added to the conversation while the run was open."""

    type: Literal["message"] = "message"
    text: str
    """The text of the message."""
    content: list[Part] = optional_field([])
    """Its parts, if it has others than a text; `data` is left out, and `ref` is the digest of the bytes."""


class Stopping(_StoredEvent):
    """The run was asked to stop; calls that are running finish first."""

    type: Literal["stopping"] = "stopping"
    reason: str | None = None
    """Why, if a reason was given."""


class RunEnded(_StoredEvent):
    """A turn ended. `status`: the result's, or `failed`, `cancelled`, `terminated`, `timed_out`.

    `result` is set for the newest turn, if it ended with one; `error` {`kind`, `message`} where it failed.
    """

    type: Literal["run_ended"] = "run_ended"
    turn: int
    """The number of the turn, from 1."""
    status: str
    result: RunResult | None = None
    error: ErrorInfo | None = None


class SubRunSource(BaseModel):
    """The run of a sub-agent."""

    id: str
    """The run's id."""
    agent: str
    """The name of its agent."""
    call_id: str
    """The call that started it."""
    parent: str
    """The id of the run that made the call."""
    depth: int
    """1 for a sub-agent of the run whose events are read, 2 for a sub-agent of that one."""


class SubRunEvent(_Event):
    """An event of a sub-agent's run. Its events come in their order, before the `tool_call_settled` of the call."""

    type: Literal["sub_run"] = "sub_run"
    source: SubRunSource
    """Which run."""
    event: Event
    """Its event, without a token."""


Event = Annotated[
    RunStarted
    | Compacted
    | StepStarted
    | ModelFallback
    | HandedOver
    | TextDelta
    | ToolInputDelta
    | TextVoid
    | Answered
    | ToolCallRepaired
    | Waiting
    | Reminder
    | Edited
    | Decided
    | ToolCallStarted
    | ToolCallDeferred
    | ToolProgress
    | ToolCallSettled
    | AnswerRejected
    | MessageReceived
    | Stopping
    | RunEnded
    | SubRunEvent,
    Field(discriminator="type"),
]
"""Any event, of the class that its `type` names."""
SubRunEvent.model_rebuild()
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Parses an event from JSON."""
EVENT_TYPES = frozenset(each.model_fields["type"].default for each in get_args(get_args(Event)[0]))
"""The value of `type` of each event that this version knows."""
