"""What the two OpenAI providers share: the package's client, and the fields that both APIs have."""

from __future__ import annotations

import importlib
import os
from collections.abc import Container, Mapping
from typing import Any, ClassVar

from mulligan.activities.models._adapted import Adapted
from mulligan.activities.models._model_settings import settings_for
from mulligan.activities.models._sdk_client import LIST_TIMEOUT, SdkClient
from mulligan.activities.models._strict_schema import strict
from mulligan.activities.models.protocol import Request, Unavailable
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.wire.agent_facts import OutputFormat

ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
LABELS = ("prompt_cache_key", "safety_identifier")
"""Fields of requests that name their conversation and their user. Compatible servers may refuse them."""


class AcceptedLabels:
    """Which of `LABELS` the models of an endpoint accept: a refusal that names one says that it does not.

    Args:
        adapted: What is known of the models.
        is_own: Whether the endpoint is the package's default one.
    """

    def __init__(self, adapted: Adapted, *, is_own: bool) -> None:
        self._adapted, self._default = adapted, frozenset(LABELS if is_own else ())

    def of(self, model: str) -> frozenset[str]:
        """Those that a model accepts."""
        words = self._adapted.of(model)
        return frozenset(name for name in self._default if f"no_{name}" not in words) if words else self._default

    def learn(self, model: str, refused: ModelRequestError) -> bool:
        """Whether a refusal names some that were not known to be refused."""
        named = [f"no_{name}" for name in self.of(model) if name in refused.message]
        return refused.status in (400, 422) and self._adapted.learn(model, named)


class OpenAIClient(SdkClient):
    """Calls the APIs by one `AsyncOpenAI`. The default endpoint is OPENAI_BASE_URL, with OPENAI_API_KEY."""

    package = "openai"
    default_key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    models_path = "/models"
    kinds = ("azure",)
    options: ClassVar[Mapping[str, Any]] = {"security": {"bearer_auth": True}}
    """Never the admin key, which requests would have as well."""

    async def drops_tools(self) -> bool:
        """Whether it is llama.cpp's server with a chat template without tools, which it leaves out without a word."""
        if self._endpoint is None or self._endpoint.kind or not self._endpoint.base_url:
            return False
        root = self._endpoint.base_url.rstrip("/").removesuffix("/v1")
        try:
            props = await self.call("get", f"{root}/props", LIST_TIMEOUT)
        except (ModelRequestError, Unavailable):
            return False  # it is another server
        known = props.get("chat_template_caps")
        return isinstance(known, dict) and known.get("supports_tools") is False

    def accepted_labels(self, adapted: Adapted) -> AcceptedLabels:
        """What is known of the labels that the endpoint accepts: at first only that OpenAI's own does."""
        return AcceptedLabels(adapted, is_own=self._endpoint is None)

    def _create(self, sdk: Any, options: dict[str, Any]) -> Any:
        endpoint = self._endpoint
        try:
            if endpoint is not None and endpoint.kind == "azure":
                client = self._create_for_azure(sdk, endpoint, options)
            else:
                url = endpoint.base_url if endpoint else None
                client = sdk.AsyncOpenAI(api_key=self._key(), base_url=url, **options)
        except sdk.OpenAIError as error:
            if endpoint is not None and endpoint.kind == "azure":
                raise ModelRequestError(f"The client of Azure cannot be created: {error}") from None
            raise self._no_key() from None
        if endpoint is not None:
            client.organization = client.project = None  # OPENAI_ORG_ID is of the default endpoint
        return client

    def _check_key(self) -> None:
        super()._check_key()
        # An admin key alone satisfies the package, and no endpoint of models accepts it.
        if self._endpoint is None and not os.environ.get(self.default_key_variable):
            raise self._no_key()

    def _create_for_azure(self, sdk: Any, endpoint: Endpoint, options: dict[str, Any]) -> Any:
        """Create the client of Azure: for its API of version 1 the ordinary one, otherwise the one that knows its paths."""
        key, address = self._cloud_key(), (endpoint.base_url or "").rstrip("/")
        token = key or _entra_token()
        if endpoint.api_version is None:
            return sdk.AsyncOpenAI(api_key=token, base_url=address, **options)
        login = {"api_key": key} if key else {"azure_ad_token_provider": token}
        address = address.removesuffix("/openai")
        return sdk.AsyncAzureOpenAI(azure_endpoint=address, api_version=endpoint.api_version, **login, **options)


def _entra_token() -> Any:
    """A function that returns a token of Microsoft Entra: that of the environment, or by the package azure-identity.

    Raises:
        ModelRequestError: there is neither.
    """
    if token := os.environ.get("AZURE_OPENAI_AD_TOKEN", "").strip():

        async def given() -> str:
            return token

        return given
    try:
        identity = importlib.import_module("azure.identity.aio")
    except ImportError:
        raise ModelRequestError(
            "There is no login for Azure: name the variable of a key (api_key_env), set AZURE_OPENAI_AD_TOKEN, or install "
            "the package azure-identity for a login by the worker's environment."
        ) from None
    return identity.get_bearer_token_provider(identity.DefaultAzureCredential(), ENTRA_SCOPE)


def settings_of(request: Request, provider: str, labels: Container[str] = LABELS) -> dict[str, Any]:
    """The agent's model settings as fields of the body, without those about tools where the agent has none.

    Args:
        request: The request.
        provider: The provider's prefix.
        labels: Those of `LABELS` that the endpoint accepts. The agent's own come first.
    """
    own = {name: getattr(request, name) for name in LABELS if name in labels and getattr(request, name)}
    settings = {**own, **settings_for(request, provider)}
    if not request.definition.tools and not request.definition.tools_of(provider):
        settings.pop("tool_choice", None)
        settings.pop("parallel_tool_calls", None)
    elif not request.parallel_tool_calls:
        # True is every server's default, and some models refuse the field itself.
        settings["parallel_tool_calls"] = False
    return settings


def json_schema_format(output: OutputFormat) -> dict[str, Any]:
    """The fields of a `json_schema` format: strict where strict mode accepts the schema, else with the schema unchanged."""
    schema = strict(output.json_schema)
    described = {"description": output.description} if output.description else {}
    return {"name": output.name, **described, "schema": schema or output.json_schema, "strict": schema is not None}
