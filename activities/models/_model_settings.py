"""The agent's `model_settings` as one provider gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.activities.models.protocol import Request
from mulligan.provider_plugin import settings_of


def settings_for(request: Request, provider: str) -> dict[str, Any]:
    """The request's settings for a provider, with the extra fields of its body among them."""
    settings = settings_of(request.settings, provider)
    extra = settings.pop("extra_body", None)  # the packages' name for fields that their types do not know
    if isinstance(extra, Mapping):
        settings.update(extra)
    return settings


def tool_choice_of(settings: Mapping[str, Any]) -> tuple[str, str] | Any:
    """The `tool_choice` of OpenAI's two forms as (`auto`, `none`, `required` or `function`, the function's name).

    Anything else is returned unchanged: it is in the provider's own form. None: there is none.
    """
    choice = settings.get("tool_choice")
    if choice in ("auto", "none", "required"):
        return choice, ""
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        named = choice.get("function")
        return "function", str((named if isinstance(named, Mapping) else choice).get("name", ""))
    return choice
