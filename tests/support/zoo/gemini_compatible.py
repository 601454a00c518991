"""Google's own endpoint of Chat Completions: calls without an index, signatures beside them, errors in a list."""

from __future__ import annotations

import copy

from tests.support.zoo import streams
from tests.support.zoo.member import Json, Member

SIGNED = {"google": {"thought_signature": "U0lH"}}


def says(message: str, status: int) -> Json:
    return {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}


def signed(body: Json) -> str | None:
    """Each of its own calls has its signature."""
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    is_right = all(call.get("extra_content") == SIGNED for call in calls if call["id"].startswith("call_"))
    return None if is_right else "Function call is missing a thought_signature in functionCall parts."


def with_signatures(answer: Json) -> Json:
    """A signature beside each call."""
    answer = copy.deepcopy(answer)
    for call in streams.message_of(answer).get("tool_calls") or ():
        call["extra_content"] = SIGNED
    return answer


MEMBER = Member(
    name="gemini_compatible",
    sources=[
        "https://github.com/open-webui/computer/issues/224 (signatures)",
        "https://github.com/googleapis/python-genai/issues/2868 (what is missing without)",
    ],
    rules=[signed],
    says=says,
    answers=with_signatures,
    streams=streams.whole_calls(lambda _number: None),
)
