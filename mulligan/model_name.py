"""`provider:NAME`: how agents, runs and price tables name a model, and which providers exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mulligan.errors import DeclarationError


@dataclass(frozen=True)
class ProviderTraits:
    """What declarations and prices need to know of a provider; its code is loaded by workers only."""

    writes_to_schema: bool = False
    """Whether its models constrain their answer to a JSON schema. A server that speaks Chat Completions may or may not, so
    agents get output tools there, which all servers take; `ProviderStrategy` says otherwise."""
    is_free: bool = False
    """Whether its models cost nothing, unless a price table says otherwise."""


SCRIPTED = "scripted"
PROVIDERS: Mapping[str, ProviderTraits] = {
    "openai": ProviderTraits(writes_to_schema=True),
    "openai-chat": ProviderTraits(),
    SCRIPTED: ProviderTraits(is_free=True),
}
"""Every provider, by its name. `activities/models/providers.py` creates each of them, and fails if one is missing."""


@dataclass(frozen=True)
class ModelName:
    """The two parts of `provider:NAME`. `name` may contain colons itself (`openai:ft:gpt-5-mini:us:x`)."""

    provider: str
    name: str

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Split at the first colon. Nothing is checked: `check_model` did that where the model was declared."""
        provider, _, name = text.partition(":")
        return cls(provider, name)

    @property
    def traits(self) -> ProviderTraits:
        """The traits of its provider; the defaults for a provider that does not exist."""
        return PROVIDERS.get(self.provider, ProviderTraits())


def check_model(model: str, context: str) -> None:
    """Check that a model is spelled `provider:NAME`, with a provider that exists. `context` begins the error's sentence.

    Raises:
        DeclarationError: it is not.
    """
    parsed = ModelName.parse(model)
    if parsed.provider not in PROVIDERS or not parsed.name:
        spellings = ", ".join(f"{known}:NAME" for known in PROVIDERS)
        raise DeclarationError(f"{context}: the model is {model!r}; it must be one of {spellings}.")
