"""Every provider that a worker has, by the first part of a model's name (`openai-chat` of `openai-chat:NAME`)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping

from mulligan.activities.models._openai_client import OpenAIClient
from mulligan.activities.models.openai_chat import OpenAIChat
from mulligan.activities.models.openai_responses import OpenAIResponses
from mulligan.activities.models.protocol import Provider
from mulligan.activities.models.scripted import Scripted
from mulligan.model_name import PROVIDERS, SCRIPTED, ModelName
from mulligan.script import Script


def import_sdks(models: Iterable[str]) -> None:
    """Import the SDKs of the providers of these models now, and not at the first request. It takes seconds."""
    if any(ModelName.parse(model).provider.startswith("openai") for model in models):
        importlib.import_module("openai")


def create_providers(scripts: Mapping[str, Script]) -> dict[str, Provider]:
    """Create all of them; `scripts` by their names. This is cheap: a provider imports its SDK at its first request."""
    client = OpenAIClient()
    known: dict[str, Provider] = {
        "openai": OpenAIResponses(client),
        "openai-chat": OpenAIChat(client),
        SCRIPTED: Scripted(scripts),
    }
    if known.keys() != PROVIDERS.keys():
        raise AssertionError(f"providers.py creates {list(known)}, and mulligan/model_name.py names {list(PROVIDERS)}")
    return known
