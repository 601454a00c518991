"""Ollama: each call in one piece, all with the index 0; its errors are texts; it has no eyes without a projector."""

from __future__ import annotations

from tests.support.openai_stream import Event
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    return {"error": message}


def stream(answer: Json) -> list[Event]:
    """The finish reason is `stop`, also after calls."""

    def change(event: Json, _number: int) -> Json:
        for choice in event["choices"]:
            choice["finish_reason"] = choice.get("finish_reason") and "stop"
        return event

    return streams.changed(streams.whole_calls(lambda _number: 0), change)(answer)


MEMBER = Member(
    name="ollama",
    sources=[
        "https://github.com/ollama/ollama/issues/15457 (indexes of calls)",
        "https://github.com/ollama/ollama/issues/12064 (calls that it cannot read: 500)",
        "https://github.com/ollama/ollama/issues/11633 (a call is one piece)",
        "its refusal of pictures: the words of its source, as many clients quote them",
    ],
    rules=[rules.no_pictures("this model is missing data required for image input")],
    status=500,
    says=says,
    streams=stream,
)
