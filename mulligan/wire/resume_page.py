"""What a run that has ended left: a query's answer, by which another run goes on with its conversation."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.run_input import RunInput
from mulligan.values import Message

__all__ = ["RESUME_STATE_QUERY", "ResumeState"]

RESUME_STATE_QUERY = "mulligan_left"
"""The query: what there is from the message number `since` on, counted from 0 in what the model was sent last."""


class ResumeState(BaseModel):
    """A page of it.

    `input`: what the run was started with, without prompt and messages. `trace`: its W3C traceparent, empty where it was
    not opened. `messages`: as many as fit; a step that was cut off has the results that there are. `undecided`: the ids of
    its calls that waited for a person, and so did not run. `next` is where to go on, null at the end.
    """

    input: RunInput
    trace: str = ""
    messages: list[Message] = []
    undecided: list[str] = []
    next: int | None = None
