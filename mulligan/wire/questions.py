"""The questions that an MCP server asks a person in the middle of a call (the protocol's "elicitation"), and the replies.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, JsonValue

from mulligan.schema.optional_field import optional_field
from mulligan.wire.run_context import RunContext

ASK_PERSON = "mulligan_ask_person"
"""The update by which a running call of an MCP tool asks a person, and waits for the reply."""
TOO_MANY_ASK = "Too many running calls of this workflow wait for a person."
"""The refusal of that update that means: try again later."""
CHECK_ANSWER = "check_answer"
"""Temporal's activity type."""


class Question(BaseModel):
    """One question. `key`: the server's name for it.

    `answer_schema`: the JSON schema of the answer, an object of plain fields. `url`: a page that the person is asked to
    open; the server learns there what it needs, and the answer only says that the person agrees.
    """

    key: str = optional_field("")
    text: str
    answer_schema: dict[str, JsonValue] | None = optional_field()
    url: str | None = optional_field()


class Questions(BaseModel):
    """What a call needs to know before it can be continued. `state`: what the server wants back with the replies."""

    questions: list[Question]
    state: str | None = optional_field()


class QuestionReply(BaseModel):
    """What a person replied: `decline` is a refusal to answer; `cancel` means that there is no reply."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, JsonValue] | None = optional_field()


class Replies(BaseModel):
    """The replies with which a call is continued, by the keys of the questions.

    `round`: how many times the call has been continued, this time included.
    """

    replies: dict[str, QuestionReply]
    state: str | None = optional_field()
    round: int


class AskPerson(BaseModel):
    """The argument of the update `mulligan_ask_person`. `conversation`: the agent's key."""

    conversation: str
    call_id: str
    question: Question


class CheckAnswer(BaseModel):
    """Input of `check_answer`: a person's answer to a question with a schema."""

    where: RunContext
    question: Question
    text: str


class CheckedAnswer(BaseModel):
    """Result of `check_answer`: the answer with the schema's defaults, or in `refused` why it is not accepted."""

    content: dict[str, Any] | None = optional_field()
    refused: str | None = optional_field()
