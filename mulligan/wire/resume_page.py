"""The query for the state of a run that has ended, with which another run continues its conversation."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.once import OnceCall
from mulligan.run_input import RunInput
from mulligan.schema.optional_field import optional_field
from mulligan.values import Message

RESUME_STATE_QUERY = "mulligan_resume_state"
"""The query. `since` is a message's number, counted from 0 in the conversation that the model got last."""


class ResumeState(BaseModel):
    """A page of the state.

    `input`: the run's input, without prompt and messages. `trace`: its W3C traceparent, empty where it was not opened.
    `messages`: as many as fit; an interrupted step has only the results that exist. `undecided`: the ids of its calls that
    waited for a person, and so did not run. `once`, on the last page: its calls of tools with `once` that are not to be
    executed again. `next`: the number of the next page's first message, null at the end.
    """

    input: RunInput
    trace: str = ""
    messages: list[Message] = []
    undecided: list[str] = []
    once: list[OnceCall] = optional_field([])
    next: int | None = None
