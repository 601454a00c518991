"""LiteLLM's proxy before Gemini: a call's id has its signature, and must come back with it; usage is zeros in a stream."""

from __future__ import annotations

import re

from tests.support.zoo import streams
from tests.support.zoo.member import Json, Member

SIGNATURE = "EuIDCt8DAWkUfRN3uZOVxKszco" * 20


def signed(body: Json) -> str | None:
    """Each call that Gemini made has its signature."""
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            if not re.fullmatch(rf"old\d+|call_\w{{28}}__thought__{SIGNATURE}==", call["id"]):
                name = call["function"]["name"]
                return f"Function call is missing a thought_signature in functionCall parts. Function call `{name}`"
    return None


MEMBER = Member(
    name="litellm_gemini",
    sources=[
        "https://github.com/BerriAI/litellm/pull/16895 (ids with signatures)",
        "https://github.com/sierra-research/tau2-bench/issues/559 (their length)",
        "https://github.com/BerriAI/litellm/issues/37849 (what a client that shortens them gets)",
    ],
    rules=[signed],
    answers=lambda answer: streams.usage_of_zeros(
        streams.with_ids(lambda _name, n, call_id: f"call_{call_id[-24:]:0>27}{n}__thought__{SIGNATURE}==")(answer)
    ),
    streams=streams.whole_calls(lambda number: number),
)
