"""The forms of the answers to a run's queries. Any workflow of the namespace may answer them: another program's, or one of
another version.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from mulligan.values import Message, Progress, Step, Usage, WaitingFor
from mulligan.wire.event_types import EVENTS_QUERY
from mulligan.wire.updates import PENDING, Pending


def _as_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


_Time = Annotated[str, AfterValidator(_as_time)]
_Count = Annotated[int, Field(ge=0)]


class _Waiting(WaitingFor):
    since: _Time
    next_attempt: _Time | None = None
    until: _Time | None = None


class _Progress(Progress):
    """A workflow whose agents have not begun has a status alone."""

    step: int = 0
    max_steps: int = 0
    usage: Usage = Usage()
    tool_calls: int = 0
    recovered_failures: int = 0
    waiting_for: _Waiting | None = None


class _Pending(Pending):
    since: _Time
    until: _Time | None = None


class _Earlier(BaseModel):
    run_id: str


class _Page(BaseModel):
    next: _Count | None
    total: _Count
    earlier: _Earlier | None = None


class _Steps(_Page):
    steps: list[Step]


class _Messages(_Page):
    messages: list[Message]


class _Event(BaseModel):
    """An event. Its other fields are read by the reader of events, which skips what it does not know."""

    model_config = ConfigDict(extra="allow")

    type: str
    offset: _Count


class _Writing(BaseModel):
    at: _Time
    step: int
    conversation: str
    attempt: int | None = None


class _SubRun(BaseModel):
    call_id: str
    id: str
    agent: str


class _Events(_Page):
    events: list[_Event]
    steps: _Count = 0
    writing: _Writing | None = None
    sub_runs: list[_SubRun] = []


_ANSWERS: dict[str, TypeAdapter[Any]] = {
    "progress": TypeAdapter(_Progress),
    PENDING: TypeAdapter(list[_Pending]),
    "steps": TypeAdapter(_Steps),
    "messages": TypeAdapter(_Messages),
    EVENTS_QUERY: TypeAdapter(_Events),
}
"""By the query. The answers to others are parsed where they are read."""


def check_answer(query: str, answer: Any) -> None:
    """Check that the answer to a query has the form of a run's answers.

    Raises:
        pydantic.ValidationError: it has another form than the answers of a run.
    """
    if query in _ANSWERS:
        _ANSWERS[query].validate_python(answer)
