"""Moonshot's Kimi: ids that say the tool, which must come back so; nothing empty; reasoning comes back; usage in a choice."""

from __future__ import annotations

from tests.support.openai_stream import Event
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def empty(at: int, role: str) -> str:
    return f"Invalid request: the message at position {at} with role '{role}' must not be empty"


def reasoning_is_there(body: Json) -> str | None:
    """Its own calls have the reasoning that came before them."""
    for at, message in enumerate(body["messages"]):
        is_own = any(call["id"].startswith("functions") for call in message.get("tool_calls") or ())
        if is_own and message.get("reasoning_content") != "Let me see.":
            return f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {at}"
    return None


def stream(answer: Json) -> list[Event]:
    """The tokens are in the choice of the last chunk."""
    events = streams.extra_pieces("reasoning_content", lambda text: [text[:4], text[4:]])(streams.without_usage(answer))
    last = events[-2]
    assert isinstance(last, dict)
    choice = {**last["choices"][0], "usage": answer.get("usage")}
    return [*events[:-2], {**last, "choices": [choice]}, events[-1]]


MEMBER = Member(
    name="kimi",
    sources=[
        "https://github.com/MoonshotAI/kimi-code/issues/1985 (an empty answer)",
        "https://github.com/AstrBotDevs/AstrBot/issues/7200 (the words of that)",
        "https://github.com/vybestack/llxprt-code/issues/713 (ids that must come back as they are)",
        "https://github.com/MoonshotAI/kimi-cli/issues/2141 (reasoning that is missing)",
        "https://github.com/earendil-works/pi/issues/2017 (usage in a choice)",
    ],
    rules=[
        rules.nothing_empty(empty),
        rules.ids_match(r"functions\.[\w-]+:\d+|old\d+", "tool_call_id {id} is not found"),
        reasoning_is_there,
    ],
    answers=lambda answer: streams.with_field("reasoning_content", "Let me see.")(
        streams.with_ids(lambda name, number, call_id: f"functions.{name}:{number + int(call_id[-4:], 16)}")(answer)
    ),
    streams=stream,
)
