"""What happens in a run, as typed events.

The workflow keeps which of them happened and when; what was said in them it looks up in the conversation when it is asked
(query `events`). What a model is just writing is in the heartbeats of its call alone. docs/events.md says how any client
reads both.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from mulligan.schema.optional_field import optional_field
from mulligan.values import ErrorInfo, Repair, RunResult, StepResult, ToolCall, Usage

__all__ = [
    "EVENT",
    "EVENTS_QUERY",
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
"""The field of a heartbeat's detail that holds a `LiveText`."""


class LiveText(BaseModel):
    """What a model has written so far: the end of it. `start`: how many characters (Unicode code points) came before."""

    conversation: str
    step: int
    attempt: int
    start: int
    text: str


class _Event(BaseModel):
    """`token`: give it to `follow(since=…)` to go on after this event."""

    token: str | None = optional_field()
    at: datetime


class _Kept(_Event):
    """What the workflow keeps. `offset`: its number in the run, from 0; it never changes."""

    offset: int


class RunStarted(_Kept):
    """A turn began: the only one of an `AgentWorkflow`, one of many of a `DurableAgent`."""

    type: Literal["run_started"] = "run_started"
    turn: int
    agent: str
    model: str
    max_steps: int


class Compacted(_Kept):
    """The conversation's oldest `messages` were summed up before a step; with an `error` they were not."""

    type: Literal["compacted"] = "compacted"
    step: int
    messages: int
    text: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class StepStarted(_Kept):
    """A model is asked."""

    type: Literal["step_started"] = "step_started"
    step: int
    model: str


class ModelFallback(_Kept):
    """The step's model was given up, because of `error`, and `model` is asked instead. What the first wrote is void."""

    type: Literal["model_fallback"] = "model_fallback"
    step: int
    model: str
    error: ErrorInfo | None = None


class TextDelta(_Event):
    """The model writes: `text` follows the first `start` characters (Unicode code points) of attempt `attempt`.

    More than was known before may be missing from what was seen, to one who came late: `answered` has the whole.
    """

    type: Literal["text_delta"] = "text_delta"
    step: int
    attempt: int
    start: int
    text: str


class TextVoid(_Event):
    """What attempt `attempt` wrote is void: it was lost or broke off, and the model is asked again."""

    type: Literal["text_void"] = "text_void"
    step: int
    attempt: int


class Answered(_Kept):
    """What the model said, whole: it stands in place of all that was seen of it before."""

    type: Literal["answered"] = "answered"
    step: int
    text: str
    tool_calls: list[ToolCall]
    usage: Usage


class ToolCallRepaired(_Kept):
    """A call's input was wrong and was corrected before it runs."""

    type: Literal["tool_call_repaired"] = "tool_call_repaired"
    step: int
    call_id: str
    name: str
    repairs: list[Repair]


class Waiting(_Kept):
    """A call waits for a person: `kind` is `approval` or `question`, `text` what they are asked."""

    type: Literal["waiting"] = "waiting"
    step: int
    call_id: str
    name: str
    kind: str
    arguments: Any = None
    text: str = ""


class Decided(_Kept):
    """A call waits no more: `approve`, `deny` or `answer`, by a person; `timeout`; `stopped` with the run.

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


class ToolCallStarted(_Kept):
    """A call runs, with its valid arguments. One that is settled without a start never ran: the model was told why."""

    type: Literal["tool_call_started"] = "tool_call_started"
    step: int
    call_id: str
    name: str
    arguments: Any = None


class ToolCallSettled(_Kept):
    """What the model is told of a call: its result, or in `result.error` the failure that the run recovers from."""

    type: Literal["tool_call_settled"] = "tool_call_settled"
    step: int
    call_id: str
    name: str
    result: StepResult
    attempts: int


class AnswerRejected(_Kept):
    """An answer was not taken, and no call is to blame; the model is told so."""

    type: Literal["answer_rejected"] = "answer_rejected"
    step: int
    error: ErrorInfo


class MessageReceived(_Kept):
    """A message joined the conversation while the run was open."""

    type: Literal["message"] = "message"
    text: str


class Stopping(_Kept):
    """Somebody asked the run to stop: calls that run finish."""

    type: Literal["stopping"] = "stopping"
    reason: str | None = None


class RunEnded(_Kept):
    """A turn ended. `status`: the result's, or `failed`, `cancelled`, `terminated`, `timed_out`.

    `result` is there where the turn came to one and is the newest; `error` {`kind`, `message`} where it failed.
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
"""Reads an event from JSON."""
