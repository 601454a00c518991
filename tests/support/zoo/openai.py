"""OpenAI itself."""

from __future__ import annotations

from tests.support.zoo.member import Json, Member
from tests.support.zoo.openai_chat_rules import check_chat


def refuses(body: Json) -> str | None:
    """All of its rules, each with its own words."""
    check_chat(body)
    return None


MEMBER = Member(
    name="openai",
    sources=["the types of the package openai, which are generated from its specification", "openai_chat_rules.py"],
    rules=[refuses],
)
