"""The agent's `model_settings` as one provider gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.activities.models.protocol import Request
from mulligan.provider_plugin import BUILT_IN


def settings_for(request: Request, provider: str) -> dict[str, Any]:
    """The settings for a provider: those for all, and over them its own, a table under the provider's prefix.

    So the models of a list may have different settings: `{"temperature": 0, "anthropic": {"thinking": {…}}}`.
    """
    settings = {name: value for name, value in request.settings.items() if not _is_table(name, value)}
    own = request.settings.get(provider)
    if isinstance(own, Mapping):
        settings.update(own)
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


def _is_table(name: str, value: object) -> bool:
    return name in BUILT_IN and isinstance(value, Mapping)
