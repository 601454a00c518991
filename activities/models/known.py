"""The providers that a worker has, each by the first part of a model's spelling (`openai-chat:NAME`)."""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.activities.models._openai import OpenAIClient
from mulligan.activities.models.openai_chat import OpenAIChat
from mulligan.activities.models.openai_responses import OpenAIResponses
from mulligan.activities.models.protocol import Provider
from mulligan.activities.models.scripted import Scripted
from mulligan.script import Script


def providers(scripts: Mapping[str, Script]) -> dict[str, Provider]:
    """All of them; `scripts` by their names. Costs nothing: what a provider needs it loads at its first request."""
    client = OpenAIClient()
    return {
        "openai": OpenAIResponses(client),
        "openai-chat": OpenAIChat(client),
        "scripted": Scripted(scripts),
    }
