"""vLLM with a template of Gemma: no instructions as such, the roles alternate; ids change from piece to piece."""

from __future__ import annotations

from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}


def another_id(event: Json, number: int) -> Json:
    """A new id in each piece of a call."""
    for choice in event["choices"]:
        for call in choice["delta"].get("tool_calls") or ():
            call["id"] = f"{call.get('id', 'chatcmpl-tool')}-{number}"
    return event


MEMBER = Member(
    name="vllm",
    sources=[
        "https://github.com/vllm-project/vllm/issues/23522 (ids)",
        "https://github.com/run-llama/llama_index/issues/11731 (roles)",
        "the chat templates of Gemma 2 (the role `system`) and Llama 2",
    ],
    rules=[
        rules.no_system("System role not supported"),
        rules.roles_alternate("Conversation roles must alternate user/assistant/user/assistant/..."),
    ],
    says=says,
    streams=streams.changed(streams.openai, another_id),
)
