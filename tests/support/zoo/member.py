"""What a real server of Chat Completions is described by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.openai_shapes import Refusal
from tests.support.openai_stream import Event, chat_events

Json = dict[str, Any]
Rule = Callable[[Json], str | None]
"""Says why a request is refused; None: it is not."""


def openai_error(message: str, status: int) -> Json:
    """An error as OpenAI says it."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def as_it_is(answer: Json) -> Json:
    """The answer, unchanged."""
    return answer


def openai_stream(answer: Json) -> list[Event]:
    """The answer as OpenAI streams it."""
    return chat_events(answer, with_usage=True)


class MemberRefusal(Refusal):
    """A request that a server refuses, in its own words."""

    def __init__(self, member: Member, message: str) -> None:
        super().__init__(message, status=member.status)
        self._body = member.says(message, member.status)

    def body(self) -> Json:
        return self._body


@dataclass(frozen=True)
class Member:
    """A real server.

    Attributes:
        name: Its name.
        sources: Where each of its rules was seen.
        rules: What it refuses.
        status: The status of its refusals.
        says: Their body.
        answers: Changes an answer of OpenAI's into one of its own.
        streams: The answer as its events.
    """

    name: str
    sources: Sequence[str]
    rules: Sequence[Rule] = ()
    status: int = 400
    says: Callable[[str, int], Json] = openai_error
    answers: Callable[[Json], Json] = as_it_is
    streams: Callable[[Json], list[Event]] = openai_stream

    def check(self, body: Json) -> None:
        """Refuse a request that the server would refuse."""
        for rule in self.rules:
            if (told := rule(body)) is not None:
                raise MemberRefusal(self, told)
