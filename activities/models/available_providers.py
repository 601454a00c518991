"""The providers of one worker: one object for each provider and endpoint that its runs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from mulligan.activities.models.openai._openai_client import OpenAIClient
from mulligan.activities.models.protocol import (
    AnswersInBackground,
    AnswersInBatches,
    Provider,
    Reply,
    Request,
    Unavailable,
)
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.model_name import ModelName
from mulligan.provider_plugin import BUILT_IN, find_plugin
from mulligan.schema.error_text import error_text, type_name
from mulligan.script import Script
from mulligan.values import Message


def import_sdks(models: Iterable[str]) -> None:
    """Import the SDKs of the providers of these models now, and not at the first request. It takes seconds.

    What a package imports only with its first HTTP client takes 0.1 s more of CPU time, and of the event loop's.
    """
    packages = (ModelName.parse(model).traits.sdk for model in models)
    for package in filter(None, dict.fromkeys(packages)):
        new_http_client = getattr(import_module(package), "DefaultAsyncHttpxClient", None)
        if new_http_client is not None:
            new_http_client()


class AvailableProviders:
    """Finds the provider of a model. Creating providers is cheap: each imports its SDK at its first request.

    Args:
        scripts: The scripted models, by their names.
        endpoints: The endpoints that the worker knows, by their names.
    """

    def __init__(self, scripts: Mapping[str, Script], endpoints: Mapping[str, Endpoint] | None = None) -> None:
        self.endpoints = dict(endpoints or {})
        self.scripts = scripts
        self._clients: dict[str, OpenAIClient] = {}
        self._created: dict[tuple[str, str], Provider] = {}

    def of(self, model: str) -> Provider:
        """The provider of a model (`provider:NAME` or `provider@endpoint:NAME`) at its endpoint.

        An endpoint or a provider that this worker does not know is a provider whose requests are `Unavailable`: another
        worker, or this one after its restart, may know it.

        Raises:
            ModelRequestError: a plugin failed to create its provider.
        """
        parsed = ModelName.parse(model)
        key = parsed.provider, parsed.endpoint
        if key not in self._created:
            if parsed.endpoint and parsed.endpoint not in self.endpoints:
                known = ", ".join(sorted(self.endpoints)) or "none"
                return _Missing(
                    parsed.provider, f"this worker does not know the endpoint {parsed.endpoint!r}; it knows: {known}"
                )
            if (create := self._factory(parsed.provider)) is None:
                return _Missing(parsed.provider, f"this worker has no provider {parsed.provider!r}")
            self._created[key] = create(self.endpoints.get(parsed.endpoint))
        return self._created[key]

    def background_of(self, model: str) -> AnswersInBackground | None:
        """The part of a model's provider that stores answers; None: this worker knows none."""
        return getattr(self.of(model), "background", None)

    def batch_of(self, model: str) -> AnswersInBatches | None:
        """The part of a model's provider that answers in batches; None: this worker knows none."""
        return getattr(self.of(model), "batch", None)

    def endpoint_of(self, model: str) -> Endpoint | None:
        """The endpoint that a model names, if this worker knows it."""
        return self.endpoints.get(ModelName.parse(model).endpoint)

    def timeout(self, model: str, seconds: float) -> float:
        """The seconds that a request to a model may take, where the agent allows `seconds`."""
        endpoint = self.endpoint_of(model)
        return seconds if endpoint is None or endpoint.timeout is None else min(seconds, endpoint.timeout)

    async def close(self) -> None:
        """Close the connections of all providers."""
        for provider in self._created.values():
            await provider.close()

    def openai_client(self, endpoint: Endpoint | None) -> OpenAIClient:
        """The client of an endpoint, which both of OpenAI's APIs share."""
        return self._clients.setdefault(endpoint.name if endpoint else "", OpenAIClient(endpoint))

    def _factory(self, prefix: str) -> Callable[[Endpoint | None], Provider] | None:
        if (traits := BUILT_IN.get(prefix)) is not None:
            return partial(import_module(f"{__package__}.{traits.module}").create, self)
        plugin = find_plugin(prefix)
        if plugin is None:
            return None

        def create(endpoint: Endpoint | None) -> Provider:
            try:
                provider = plugin.create(endpoint)
            except Exception as error:  # noqa: BLE001 - code of a plugin
                raise ModelRequestError(
                    f"The provider {prefix!r} could not be created: {type_name(error)}: {error_text(error)}"
                ) from None
            if not isinstance(getattr(provider, "name", None), str) or not all(
                callable(getattr(provider, method, None)) for method in ("encode", "complete", "close")
            ):
                raise ModelRequestError(
                    f"The provider {prefix!r} is a {type(provider).__name__} without the name and the methods of "
                    "mulligan.providers.Provider."
                )
            for part, is_said in (("background", plugin.in_background), ("batch", plugin.in_batches)):
                if is_said and getattr(provider, part, None) is None:
                    raise ModelRequestError(f"The provider {prefix!r} has no part {part!r}, though its plugin says so.")
            return provider

        return create


class _Missing:
    """Stands for a provider or an endpoint that this worker does not know."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.background = self.batch = None
        self._reason = reason

    def encode(self, message: Message) -> list[Any]:  # noqa: ARG002 - the protocol's
        return []

    async def complete(self, request: Request) -> Reply:  # noqa: ARG002 - the protocol's
        raise Unavailable(self._reason)

    async def close(self) -> None:
        pass
