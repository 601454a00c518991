"""SGLang: no empty answer; a finish reason is an object; there is one in more than one chunk; no tokens are told."""

from __future__ import annotations

from tests.support.openai_stream import Event
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def stream(answer: Json) -> list[Event]:
    """The finish reason comes twice, as an object."""
    events = streams.openai(streams.without_usage(answer))
    last = events[-2]
    assert isinstance(last, dict)
    [choice] = last["choices"]
    said = {**last, "choices": [{**choice, "finish_reason": {"type": choice["finish_reason"], "matched": None}}]}
    return [*events[:-2], said, said, events[-1]]


MEMBER = Member(
    name="sglang",
    sources=[
        "https://github.com/sgl-project/sglang/issues/35915 (an empty answer)",
        "https://github.com/sgl-project/sglang/pull/8417 (finish reasons in two chunks)",
        "https://github.com/sgl-project/sglang/issues/6310 (indexes of calls)",
    ],
    rules=[rules.nothing_empty(lambda *_: "content cannot be empty for an assistant message", ["assistant"])],
    answers=streams.without_usage,
    streams=stream,
)
