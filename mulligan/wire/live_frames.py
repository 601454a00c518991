"""The frames of the live channel: what workers say of model calls, and servers of the runs that they watch.

Each is a JSON object on a line of its own. A frame makes watching faster and decides nothing: what it says is compared with
what Temporal says (`mulligan/client/live_reader.py`), so one that is lost, repeated or forged changes no stored event.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Annotated, Literal, Protocol

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

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


class Sealed(_Frame):
    """A frame of a worker as an encryption has it, base64."""

    type: Literal["sealed"] = "sealed"
    workflow: _Name
    data: Annotated[Base64Bytes, Field(max_length=MOST_LINE_BYTES)]


class Seal(Protocol):
    """An encryption of frames, each bound to its workflow."""

    def seal(self, workflow: str, data: bytes) -> bytes:
        """Encrypt."""

    def unseal(self, workflow: str, data: bytes) -> bytes:
        """Decrypt. Raises ValueError if it was changed, is of another workflow, or its key is missing."""


ServerFrame = Watch | Unwatch
"""What a server sends to a worker."""
WorkerFrame = CallOpen | Written | CallEnd | News
"""What a worker sends to a server."""
_SERVER: TypeAdapter[ServerFrame] = TypeAdapter(Annotated[ServerFrame, Field(discriminator="type")])
_WORKER: TypeAdapter[WorkerFrame | Sealed] = TypeAdapter(Annotated[WorkerFrame | Sealed, Field(discriminator="type")])


def worker_line(frame: WorkerFrame, seal: Seal | None) -> bytes:
    """A frame of a worker as a line, encrypted where there are keys."""
    if seal is None:
        return line_of(frame)
    workflow = workflow_of(frame)
    return line_of(Sealed(workflow=workflow, data=b64encode(seal.seal(workflow, line_of(frame)))))


def line_of(frame: ServerFrame | WorkerFrame | Sealed) -> bytes:
    """The frame as a line."""
    return frame.model_dump_json().encode() + b"\n"


def server_frame(line: bytes) -> ServerFrame | None:
    """The frame in a line of a server; None: it is none, or only newer versions know it."""
    with suppress(ValidationError):
        return _SERVER.validate_json(line)
    return None


def worker_frame(line: bytes, seal: Seal | None = None) -> WorkerFrame | None:
    """The frame in a line of a worker; None: it is none, or only newer versions know it; or it is encrypted and there are no
    keys, or the other way round.
    """
    with suppress(ValueError):  # also pydantic's
        frame = _WORKER.validate_json(line)
        if seal is None:
            return None if isinstance(frame, Sealed) else frame
        if isinstance(frame, Sealed):
            inner = _WORKER.validate_json(seal.unseal(frame.workflow, frame.data))
            return inner if not isinstance(inner, Sealed) and workflow_of(inner) == frame.workflow else None
    return None


def workflow_of(frame: ServerFrame | WorkerFrame) -> str:
    """The workflow id that a frame is about."""
    return frame.place.workflow if isinstance(frame, CallOpen | Written | CallEnd) else frame.workflow
