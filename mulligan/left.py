"""What a run that has ended left: a query's answer, by which another run goes on with its conversation."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.values import Message, RunInput

__all__ = ["LEFT_QUERY", "Left"]

LEFT_QUERY = "mulligan_left"
"""The query: what there is from the message number `since` on, counted from 0 in what the model was sent last."""


class Left(BaseModel):
    """A page of it.

    `input`: what the run was started with, without prompt and messages. `trace`: its W3C traceparent, empty where it was
    not opened. `messages`: as many as fit; the newest are the results of a step that was cut off, as far as it has some.
    `next` is where to go on, null at the end.
    """

    input: RunInput
    trace: str = ""
    messages: list[Message] = []
    next: int | None = None
