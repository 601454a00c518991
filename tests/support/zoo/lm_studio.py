"""LM Studio with a template of Devstral: the roles alternate; the refusal is a long text; the answer may come as one chunk."""

from __future__ import annotations

from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member


def says(message: str, status: int) -> Json:
    hint = "This is usually an issue with the model's prompt template. If you are using a popular model, you can try to search."
    return {"error": f'Error rendering prompt with jinja template: "{message}".\n\n{hint}'}


MEMBER = Member(
    name="lm_studio",
    sources=[
        "https://github.com/mcowger/generic-copilot/pull/43 (roles)",
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/842 (the form of the refusal)",
    ],
    rules=[
        rules.roles_alternate(
            "After the optional system message, conversation roles must alternate user and assistant roles except for tool"
            " calls and results."
        )
    ],
    says=says,
    streams=streams.all_at_once,
)
