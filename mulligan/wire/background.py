"""Background responses: the activities that create, read and end one, and the update that says that one has ended.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.values import ErrorInfo
from mulligan.wire.checked_result import MOST_INT, CheckedResult
from mulligan.wire.event_types import TextCursor
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.run_context import RunContext

METADATA = "mulligan"
"""The key in a response's metadata of the token by which a webhook finds the run."""
START_RESPONSE, READ_RESPONSE, END_RESPONSE = "start_response", "read_response", "end_response"
"""Temporal's activity types."""
RESPONSE_ENDED = "response_ended"
"""Temporal's name of the update."""


class StartResponse(ModelCall):
    """Input of `start_response`. `number`: of the response in its step, from 1. `failed`: the step's attempts before it."""

    number: int = optional_field(1)
    failed: int = optional_field(0)


class StartedResponse(CheckedResult):
    """Result of `start_response`. `attempt`: the number of the step's attempt that created the response.

    `cursor`: where its text can be read while the model writes it; None: it cannot.
    """

    id: str
    status: str
    attempt: int
    cursor: TextCursor | None = optional_field()
    input_tokens: int = optional_field(0)
    """About how many tokens the request has, where the tenant has a budget."""

    def fault(self) -> str | None:
        """Why the response cannot be used: without an id, nobody can read it."""
        return None if self.id and 0 < self.attempt <= MOST_INT else "the response has no id, or no attempt"


class ReadResponse(ModelCall):
    """Input of `read_response`: the model call, without messages, and the response that answers it.

    `attempt`: that created it. `started`: when, in seconds since the epoch. `cursor`: up to where the polls before have read
    its text; None: it is not read before the response has ended.
    """

    uncached: int | None = optional_field()
    id: str
    attempt: int
    started: float
    cursor: TextCursor | None = optional_field()


class ResponseState(CheckedResult):
    """Result of `read_response`.

    `status`: `running`, with the provider's own word for it in `detail`; `completed`, with the `answer`; `failed`, with the
    `error`: another response may be created; `expired`: the provider does not have it any more; `unknown`: the provider
    could not be asked, because of the `error`. `retry_after`: seconds that the endpoint asks to wait. `cursor`: of a running
    response, where the next poll continues to read its text; None: it cannot. `is_writing`: whether the model was writing
    text when the poll ended.
    """

    status: Literal["running", "completed", "failed", "expired", "unknown"]
    detail: str = optional_field("")
    answer: ModelAnswer | None = optional_field()
    error: ErrorInfo | None = optional_field()
    retry_after: float | None = optional_field()
    cursor: TextCursor | None = optional_field()
    is_writing: bool = optional_field(False)

    def fault(self) -> str | None:
        """Why the state cannot be used: an answer and the status `completed` belong together."""
        if (self.status == "completed") != (self.answer is not None):
            return "a response has an answer exactly if it is completed"
        return self.answer.fault() if self.answer else None


class EndResponse(BaseModel):
    """Input of `end_response`, which deletes a response at the provider, and cancels it before if nobody needs it.

    `error`: why it was cancelled, for the span of its attempt. `input_tokens`: as in StartedResponse; `written`: characters
    of the text that were read. Other fields are as in ReadResponse.
    """

    where: RunContext
    model: str
    id: str
    step: int
    attempt: int
    started: float
    fallback: int = optional_field(0)
    cancel: bool = optional_field(False)
    error: ErrorInfo | None = optional_field()
    input_tokens: int = optional_field(0)
    written: int = optional_field(0)


class ResponseEnded(BaseModel):
    """The update: a response has ended at the provider, so the run reads it now."""

    model_config = ConfigDict(extra="forbid")

    response_id: Annotated[str, Field(min_length=1, max_length=1_000)]
    """The provider's id of the response."""
    conversation: Annotated[str, Field(min_length=1, max_length=1_000)]
    """The number of the agent in its workflow."""
    trace_id: Annotated[str, Field(max_length=100)]
    """The trace id of the run that has created the response; a run with another one refuses."""


WORDS = FeatureWords(
    activities=(START_RESPONSE, READ_RESPONSE, END_RESPONSE), model_calls=(START_RESPONSE, READ_RESPONSE)
)
