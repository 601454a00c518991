"""Zhipu's GLM: nothing empty, said in Chinese by a code in digits."""

from __future__ import annotations

from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    return {"error": {"code": "1214", "message": message}}


MEMBER = Member(
    name="glm",
    sources=[
        "https://github.com/songquanpeng/one-api/issues/1153 (an empty answer)",
        "https://github.com/CherryHQ/cherry-studio/issues/3291 (an empty text of a user)",
        "https://github.com/yangjian102621/geekai-plus/issues/1 (the code)",
    ],
    rules=[rules.nothing_empty(lambda at, _role: f"messages[{at}]:content和tool_calls 字段不能同时为空")],
    says=says,
    answers=streams.with_field("reasoning_content", "Let me see."),
    streams=streams.extra_pieces("reasoning_content", lambda text: [text[:4], text[4:]]),
)
