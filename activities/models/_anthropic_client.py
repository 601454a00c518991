"""The client of the `anthropic` package, for `anthropic:NAME`."""

from __future__ import annotations

from typing import Any

from mulligan.activities.models._sdk_client import SdkClient
from mulligan.errors import ModelRequestError


class AnthropicClient(SdkClient):
    """Calls the API by one `AsyncAnthropic`. The default endpoint is ANTHROPIC_BASE_URL, with ANTHROPIC_API_KEY."""

    package = "anthropic"
    default_key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    models_path = "/v1/models"

    def _new_client(self) -> Any:
        from anthropic import AnthropicError, AsyncAnthropic, DefaultAsyncHttpxClient

        from mulligan.activities._answer_limit import event_hooks

        endpoint, key = self._endpoint, self._key()
        base_url = endpoint.base_url.rstrip("/").removesuffix("/v1") if endpoint and endpoint.base_url else None
        try:
            # The package neither retries nor writes spans: Mulligan does.
            client = AsyncAnthropic(
                max_retries=0,
                api_key=key,
                base_url=base_url,
                http_client=DefaultAsyncHttpxClient(event_hooks=event_hooks(endpoint)),
                open_telemetry=False,
            )
        except (AnthropicError, ValueError) as error:
            raise ModelRequestError(f"The client of the package anthropic cannot be created: {error}") from None
        if not (client.api_key or client.auth_token or client.credentials):
            raise self._no_key()
        if endpoint is not None:
            # ANTHROPIC_CUSTOM_HEADERS are for the default endpoint, not for this one.
            client._custom_headers = endpoint.resolved_headers()
        return client
