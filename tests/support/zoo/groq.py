"""Groq: refuses fields that it does not know, tells the tokens in a field of its own, and judges calls (`judges`)."""

from __future__ import annotations

from tests.support.openai_stream import Event
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def judges(message: str, written: str) -> Json:
    """The body of its refusal of what its model wrote."""
    told = {"message": message, "type": "invalid_request_error", "code": "tool_use_failed"}
    return {"error": {**told, "failed_generation": written}}


def stream(answer: Json) -> list[Event]:
    """The tokens are in `x_groq` too."""
    calls = streams.whole_calls(lambda number: number)
    events = streams.extra_pieces("reasoning", lambda text: [text[:4], text[4:]], calls)(answer)
    last = events[-2]
    assert isinstance(last, dict)
    return [*events[:-2], {**last, "x_groq": {"id": "req_1", "usage": answer.get("usage")}}, events[-1]]


def unknown_field(body: Json) -> str | None:
    """An assistant's message has known fields only."""
    known = {"role", "content", "name", "tool_calls", "function_call"}
    for at, message in enumerate(body["messages"]):
        for name in message.keys() - known if message["role"] == "assistant" else ():
            return f"'messages.{at}' : for 'role:assistant' the following must be satisfied[('messages.{at}' : property '{name}' is unsupported)]"
    return None


MEMBER = Member(
    name="groq",
    sources=[
        "https://github.com/vercel/ai/issues/6916 (tool_use_failed)",
        "https://github.com/HunorLaczko/ha-groq-cloud-api/issues/20 (the same, without what the model wrote)",
        "https://github.com/huggingface/smolagents/issues/1119 (the same through LiteLLM)",
        "https://github.com/karthink/gptel/issues/774 (its own field `reasoning`, which it refuses)",
        "https://github.com/janhq/jan/issues/8136 (reasoning_content)",
    ],
    rules=[unknown_field, rules.results_follow_calls("'messages' : no result for the tool call {id}")],
    answers=streams.with_field("reasoning", "Let me see."),
    streams=stream,
)
