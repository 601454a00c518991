"""`provider:NAME` and `provider@endpoint:NAME`: how agents, runs and price tables name a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.endpoint import ENDPOINT_NAME
from mulligan.errors import DeclarationError
from mulligan.extras import require_extra
from mulligan.provider_plugin import ProviderTraits, find_traits, known_prefixes

SCRIPTED = "scripted"


@dataclass(frozen=True)
class ModelName:
    """The parts of `provider:NAME` or `provider@endpoint:NAME`.

    `name` may contain colons itself (`openai:ft:gpt-5-mini:us:x`). `endpoint` is "" for the provider's default endpoint.
    """

    provider: str
    name: str
    endpoint: str = ""

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Split at the first colon. Nothing is checked: `check_model` did that where the model was declared."""
        served, _, name = text.partition(":")
        provider, _, endpoint = served.partition("@")
        return cls(provider, name, endpoint)

    def __str__(self) -> str:
        """The name as it was parsed."""
        return f"{self.provider}@{self.endpoint}:{self.name}" if self.endpoint else f"{self.provider}:{self.name}"

    @property
    def traits(self) -> ProviderTraits:
        """The traits of its provider; the defaults for a provider that does not exist."""
        return find_traits(self.provider) or ProviderTraits()


def check_model(model: str, context: str) -> None:
    """Check that a model is spelled `provider:NAME` or `provider@endpoint:NAME`, with a provider that exists.

    `context` begins the error's sentence. Whether a worker knows the endpoint is checked where the worker starts.

    Raises:
        DeclarationError: it is not; or the plugin or the extra of its provider cannot be used.
    """
    parsed = ModelName.parse(model)
    traits = find_traits(parsed.provider, context)
    if traits is None or not parsed.name or str(parsed) != model:
        spellings = ", ".join(f"{known}:NAME" for known in known_prefixes())
        raise DeclarationError(f"{context}: the model is {model!r}; it must be one of {spellings}.")
    if parsed.endpoint and not traits.has_endpoints:
        raise DeclarationError(
            f"{context}: the model is {model!r}, but {parsed.provider} has no endpoints; name it {parsed.provider}:NAME."
        )
    if parsed.endpoint and not ENDPOINT_NAME.fullmatch(parsed.endpoint):
        raise DeclarationError(
            f"{context}: the model is {model!r}; an endpoint's name has letters, digits, '-', '_' and '.', 64 at most."
        )
    if traits.extra:
        require_extra(traits.extra, f"{context}: the model {model!r}")


def can_be_batched(models: Sequence[str]) -> bool:
    """Whether any of the models (`provider:NAME`) has an API for batches."""
    return any(ModelName.parse(model).traits.in_batches for model in models)
