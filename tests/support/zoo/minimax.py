"""MiniMax: results follow their calls at once, with the ids that it gave; errors have their HTTP status as a text."""

from __future__ import annotations

from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    return {"type": "error", "error": {"type": "bad_request_error", "message": message, "http_code": str(status)}}


MEMBER = Member(
    name="minimax",
    sources=[
        "https://github.com/MiniMax-AI/MiniMax-M2/issues/76 (ids of results)",
        "https://github.com/MiniMax-AI/MiniMax-M2/issues/69 (results that do not follow)",
        "https://github.com/openclaw/openclaw/issues/65380 (ids must come back as they are)",
    ],
    rules=[
        rules.results_follow_calls("invalid params, tool result's tool id({id}) not found (2013)"),
        rules.ids_match(r"call_function_\w{12}_\d|old\d+", "invalid params, tool call id is invalid: {id} (2013)"),
    ],
    says=says,
    answers=streams.with_ids(lambda _name, number, call_id: f"call_function_{call_id[-12:]}_{number + 1}"),
    streams=streams.whole_calls(lambda number: number),
)
