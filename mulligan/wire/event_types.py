"""The events of a run, typed.

The workflow stores which events happened and when; the query `events` takes their texts from the conversation. The text
that a model is still writing is only in the heartbeats of its call. docs/events.md says how any client reads both.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, TypeAdapter

from mulligan.schema.optional_field import optional_field
from mulligan.values import ErrorInfo, Repair, RunResult, StepResult, ToolCall, Usage

__all__ = [
    "EVENT",
    "EVENTS_QUERY",
    "EVENT_TYPES",
    "LIVE_TEXT",
    "AnswerRejected",
    "Answered",
    "Compacted",
    "Decided",
    "Event",
    "LiveText",
    "MessageReceived",
    "ModelFallback",
    "RunEnded",
    "RunStarted",
    "StepStarted",
    "Stopping",
    "TextDelta",
    "TextVoid",
    "ToolCallRepaired",
    "ToolCallSettled",
    "ToolCallStarted",
    "Waiting",
]

EVENTS_QUERY = "events"
LIVE_TEXT = "mulligan.text"
"""The field of a heartbeat's detail that contains a `LiveText`."""


class LiveText(BaseModel):
    """The end of the text that a model has written so far, after its first `start` characters (Unicode code points)."""

    conversation: str
    step: int
    attempt: int
    start: int
    text: str


class _Event(BaseModel):
    """`token`: `follow(since=…)` continues after this event."""

    token: str | None = optional_field()
    at: datetime


class _StoredEvent(_Event):
    """An event that the workflow stores. `offset`: its number in the run, from 0; it never changes."""

    offset: int


class RunStarted(_StoredEvent):
    """A turn began: the only one of an `AgentWorkflow`, one of many of a `DurableAgent`."""

    type: Literal["run_started"] = "run_started"
    turn: int
    agent: str
    model: str
    max_steps: int


class Compacted(_StoredEvent):
    """The conversation's oldest `messages` were summarized before a step; with an `error` they were not."""

    type: Literal["compacted"] = "compacted"
    step: int
    messages: int
    text: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class StepStarted(_StoredEvent):
    """A model is called."""

    type: Literal["step_started"] = "step_started"
    step: int
    model: str


class ModelFallback(_StoredEvent):
    """`model` is called in place of the step's model, which failed by `error`. The text of the failed call is void."""

    type: Literal["model_fallback"] = "model_fallback"
    step: int
    model: str
    error: ErrorInfo | None = None


class TextDelta(_Event):
    """A part of the text that a model is writing, after the first `start` characters (Unicode code points) of `attempt`.

    A client that began late may miss what came before: `answered` has the whole text.
    """

    type: Literal["text_delta"] = "text_delta"
    step: int
    attempt: int
    start: int
    text: str


class TextVoid(_Event):
    """The text of `attempt` is void: the attempt was lost or failed, and the call is retried."""

    type: Literal["text_void"] = "text_void"
    step: int
    attempt: int


class Answered(_StoredEvent):
    """The whole answer of the model. It replaces all `text_delta` events of the step."""

    type: Literal["answered"] = "answered"
    step: int
    text: str
    tool_calls: list[ToolCall]
    usage: Usage


class ToolCallRepaired(_StoredEvent):
    """A call's input was invalid and was repaired before the call runs."""

    type: Literal["tool_call_repaired"] = "tool_call_repaired"
    step: int
    call_id: str
    name: str
    repairs: list[Repair]


class Waiting(_StoredEvent):
    """A call waits for a person: `kind` is `approval` or `question`, `text` the question to the person."""

    type: Literal["waiting"] = "waiting"
    step: int
    call_id: str
    name: str
    kind: str
    arguments: Any = None
    text: str = ""


class Decided(_StoredEvent):
    """A call has stopped waiting: `approve`, `deny` or `answer`, by a person; `timeout`; `stopped` with the run.

    `edited`: with other arguments, which are those of `tool_call_started`.
    """

    type: Literal["decided"] = "decided"
    step: int
    call_id: str
    name: str
    decision: str
    by: str | None = None
    reason: str | None = None
    edited: bool = False


class ToolCallStarted(_StoredEvent):
    """A call runs, with its valid arguments. A call that is settled without this event did not run: its result says why."""

    type: Literal["tool_call_started"] = "tool_call_started"
    step: int
    call_id: str
    name: str
    arguments: Any = None


class ToolCallSettled(_StoredEvent):
    """A call has its result for the model, or in `result.error` the failure that the run recovers from."""

    type: Literal["tool_call_settled"] = "tool_call_settled"
    step: int
    call_id: str
    name: str
    result: StepResult
    attempts: int


class AnswerRejected(_StoredEvent):
    """An answer was rejected, though no call of it is at fault; the model gets feedback."""

    type: Literal["answer_rejected"] = "answer_rejected"
    step: int
    error: ErrorInfo


class MessageReceived(_StoredEvent):
    """A message was added to the conversation while the run was open."""

    type: Literal["message"] = "message"
    text: str


class Stopping(_StoredEvent):
    """The run was asked to stop; calls that are running finish first."""

    type: Literal["stopping"] = "stopping"
    reason: str | None = None


class RunEnded(_StoredEvent):
    """A turn ended. `status`: the result's, or `failed`, `cancelled`, `terminated`, `timed_out`.

    `result` is set for the newest turn, if it ended with one; `error` {`kind`, `message`} where it failed.
    """

    type: Literal["run_ended"] = "run_ended"
    turn: int
    status: str
    result: RunResult | None = None
    error: ErrorInfo | None = None


Event = Annotated[
    RunStarted
    | Compacted
    | StepStarted
    | ModelFallback
    | TextDelta
    | TextVoid
    | Answered
    | ToolCallRepaired
    | Waiting
    | Decided
    | ToolCallStarted
    | ToolCallSettled
    | AnswerRejected
    | MessageReceived
    | Stopping
    | RunEnded,
    Field(discriminator="type"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Parses an event from JSON."""
EVENT_TYPES = frozenset(each.model_fields["type"].default for each in get_args(get_args(Event)[0]))
"""The value of `type` of each event that this version knows."""
