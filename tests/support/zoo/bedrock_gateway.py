"""A gateway of Chat Completions before Amazon Bedrock: no blank text anywhere, and the whole message at the end of a stream."""

from __future__ import annotations

from tests.support.openai_stream import Event
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    return {"detail": f"An error occurred (ValidationException) when calling the ConverseStream operation: {message}"}


def stream(answer: Json) -> list[Event]:
    """After the pieces the whole message comes once more."""
    events = streams.openai(answer)
    return [*events[:-1], {**answer, "object": "chat.completion"}, events[-1]]


def blank(at: int, _role: str) -> str:
    return f"The text field in the ContentBlock object at messages.{at}.content.0 is blank. Add text to the text field."


MEMBER = Member(
    name="bedrock_gateway",
    sources=[
        "https://github.com/NousResearch/hermes-agent/pull/63983 (texts of white space)",
        "https://github.com/earendil-works/pi/pull/3443 (empty results)",
        "https://github.com/OpenHands/OpenHands/issues/5339 (the words)",
        "https://github.com/ENTERPILOT/GoModel/issues/1068 (a whole message at the end)",
    ],
    rules=[
        rules.nothing_empty(blank),
        rules.no_blank_beside_calls("text content blocks must contain non-whitespace text"),
    ],
    says=says,
    streams=stream,
)
