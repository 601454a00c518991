"""Mistral's API: ids of nine letters and digits, an answer after each result, nothing empty, each call in one piece."""

from __future__ import annotations

from tests.support.openai_turn import made_up
from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    kind = "invalid_request_message_order" if "role" in message else "invalid_function_call"
    return {
        "object": "error",
        "message": message,
        "type": kind,
        "param": None,
        "code": "3230",
        "raw_status_code": status,
    }


MEMBER = Member(
    name="mistral",
    sources=[
        "https://github.com/anomalyco/opencode/issues/1680 (ids)",
        "https://github.com/nearai/ironclaw/issues/1241 (the body of that refusal)",
        "https://github.com/avante-corp/avante.nvim/pull/2695 (a user's message after a result)",
        "https://github.com/zed-industries/zed/issues/37021 (a result after a user's message)",
        "https://github.com/sgl-project/sglang/issues/35915 (an empty answer)",
    ],
    rules=[
        rules.ids_match("[a-zA-Z0-9]{9}", "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."),
        rules.after("tool", "user"),
        rules.after("user", "tool"),
        rules.nothing_empty(
            lambda *_: "Assistant message must have either content or tool_calls, but not none.", ["assistant"]
        ),
    ],
    says=says,
    answers=streams.with_ids(lambda _name, number, call_id: made_up("", call_id, number)[:9]),
    streams=streams.whole_calls(lambda number: number),
)
