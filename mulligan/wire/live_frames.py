"""The frames of the live channel: what workers say of model calls, and servers of the runs that they watch.

Each is a JSON object on a line of its own. A frame makes watching faster and decides nothing: what it says is compared with
what Temporal says (`mulligan/client/live_reader.py`), so one that is lost, repeated or forged changes no stored event.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mulligan.schema.optional_field import optional_field
from mulligan.wire.event_types import LivePart, LiveText

MOST_CHARS, MOST_PARTS = 16 * 1024, 64
"""What a frame has of a model's words, and how many parts they may have: as much as a heartbeat."""
MOST_LINE_BYTES = 256 * 1024
"""Of a frame of a worker; each character of its text may take six bytes as JSON."""
MOST_WATCH_BYTES = 16 * 1024
"""Of a frame of a server."""
_Name = Annotated[str, Field(min_length=1, max_length=1_000)]
_Number = Annotated[int, Field(ge=0, lt=10**15)]


class CallPlace(BaseModel):
    """An attempt of a model call, and a place in what it writes."""

    model_config = ConfigDict(frozen=True)

    workflow: _Name
    """The workflow id."""
    run: _Name
    """The id of the workflow run."""
    scheduled: _Number
    """When the attempt was scheduled, in milliseconds: a call of the same step after `model_fallback` is another one."""
    attempt: Annotated[int, Field(ge=1, lt=10**9)]
    """The number of the attempt, as in `LiveText`."""
    conversation: Annotated[str, Field(max_length=1_000)]
    """The number of the agent in its workflow."""
    step: _Number
    """The number of the step."""
    start: _Number = 0
    """How many characters of what the model has written come before this place."""

    @property
    def order(self) -> tuple[int, int]:
        """Of two calls of a conversation, the later one has the higher order."""
        return self.scheduled, self.attempt


class _Frame(BaseModel):
    model_config = ConfigDict(frozen=True)


class Watch(_Frame):
    """A server watches a run: it wants to hear of its calls, and what they have written from `have` on."""

    type: Literal["watch"] = "watch"
    workflow: _Name
    have: CallPlace | None = optional_field()
    """The call that it has heard of, and how far; None: none."""


class Unwatch(_Frame):
    """A server watches a run no longer."""

    type: Literal["unwatch"] = "unwatch"
    workflow: _Name


class CallOpen(_Frame):
    """A model call is made here. Repeated each second, it is a lease: the publisher lives."""

    type: Literal["call"] = "call"
    place: CallPlace


class Written(_Frame):
    """What a model has written, from the place on."""

    type: Literal["text"] = "text"
    place: CallPlace
    at: Annotated[float, Field(ge=0, lt=10**11)]
    """When, in seconds since 1970."""
    text: Annotated[str, Field(max_length=MOST_CHARS)]
    parts: Annotated[list[LivePart], Field(max_length=MOST_PARTS)] = optional_field([])
    """The parts of it, as in `LiveText`: those before the one in which `place` is are left out."""
    is_whole: bool = optional_field(False)
    """Whether it is all that the worker still has, and not what follows an earlier frame."""

    @property
    def live(self) -> LiveText:
        """It as text of a heartbeat."""
        place = self.place
        return LiveText(
            conversation=place.conversation,
            step=place.step,
            attempt=place.attempt,
            start=place.start,
            text=self.text,
            parts=self.parts,
        )


class CallEnd(_Frame):
    """The attempt has ended, whatever came of it."""

    type: Literal["end"] = "end"
    place: CallPlace


class News(_Frame):
    """A workflow task of a run was handled: it may have new stored events."""

    type: Literal["news"] = "news"
    workflow: _Name
    run: _Name


ServerFrame = Watch | Unwatch
"""What a server sends to a worker."""
WorkerFrame = CallOpen | Written | CallEnd | News
"""What a worker sends to a server."""
_SERVER: TypeAdapter[ServerFrame] = TypeAdapter(Annotated[ServerFrame, Field(discriminator="type")])
_WORKER: TypeAdapter[WorkerFrame] = TypeAdapter(Annotated[WorkerFrame, Field(discriminator="type")])


def line_of(frame: ServerFrame | WorkerFrame) -> bytes:
    """The frame as a line."""
    return frame.model_dump_json().encode() + b"\n"


def server_frame(line: bytes) -> ServerFrame | None:
    """The frame in a line of a server; None: it is none, or only newer versions know it."""
    with suppress(ValidationError):
        return _SERVER.validate_json(line)
    return None


def worker_frame(line: bytes) -> WorkerFrame | None:
    """The frame in a line of a worker; None: it is none, or only newer versions know it."""
    with suppress(ValidationError):
        return _WORKER.validate_json(line)
    return None


def workflow_of(frame: ServerFrame | WorkerFrame) -> str:
    """The workflow id that a frame is about."""
    return frame.place.workflow if isinstance(frame, CallOpen | Written | CallEnd) else frame.workflow
