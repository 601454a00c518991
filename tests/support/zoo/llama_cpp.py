"""llama.cpp with a template of Mistral: it answers 500 where the template refuses a conversation, or a call cannot be read."""

from __future__ import annotations

from tests.support.zoo import rules
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    return {"error": {"code": status, "message": message, "type": "server_error"}}


MEMBER = Member(
    name="llama_cpp",
    sources=[
        "https://github.com/mistralai/mistral-vibe/issues/1006 (roles)",
        "https://github.com/eclipse-theia/theia/issues/17104 (the same)",
        "https://github.com/ggml-org/llama.cpp/issues/24644 (a call that it cannot read)",
        "https://github.com/ggml-org/llama.cpp/issues/27129 (tools that the template does not know are dropped)",
    ],
    rules=[
        rules.roles_alternate(
            "\n------------\nWhile executing CallExpression at line 189, column 32 in source:\n…\nError: Jinja Exception: "
            "After the optional system message, conversation roles must alternate user and assistant roles except for tool"
            " calls and results."
        )
    ],
    status=500,
    says=says,
)
