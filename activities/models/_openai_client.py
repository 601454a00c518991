"""What the two OpenAI providers share: the package's client, and the fields that both APIs have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mulligan.activities.models._model_settings import settings_for
from mulligan.activities.models._sdk_client import SdkClient
from mulligan.activities.models._strict_schema import strict
from mulligan.activities.models.protocol import Request
from mulligan.wire.agent_facts import OutputFormat


class OpenAIClient(SdkClient):
    """Calls the APIs by one `AsyncOpenAI`. The default endpoint is OPENAI_BASE_URL, with OPENAI_API_KEY."""

    package = "openai"
    default_key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    models_path = "/models"
    options: ClassVar[Mapping[str, Any]] = {"security": {"bearer_auth": True}}
    """Never the admin key, which requests would have as well."""

    def _new_client(self) -> Any:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

        from mulligan.activities._answer_limit import event_hooks

        endpoint, key = self._endpoint, self._key()
        try:
            # The package does not retry: Temporal's retries survive the worker, take no slot meanwhile, and are visible.
            client = AsyncOpenAI(
                max_retries=0,
                api_key=key,
                base_url=endpoint.base_url if endpoint else None,
                http_client=DefaultAsyncHttpxClient(event_hooks=event_hooks(endpoint)),
            )
        except OpenAIError:
            raise self._no_key() from None
        if not client.api_key:  # an admin key alone satisfies the package, and no endpoint of models accepts it
            raise self._no_key()
        if endpoint is not None:
            # The variables of the default endpoint (OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS) are not for this one.
            client.organization = client.project = None
            client._custom_headers = endpoint.resolved_headers()
        return client


def settings_of(request: Request, provider: str) -> dict[str, Any]:
    """The agent's model settings as fields of the body, without those about tools where the agent has none."""
    settings = settings_for(request, provider)
    if not request.definition.tools:
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
