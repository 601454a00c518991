"""The client of the `anthropic` package, for `anthropic:NAME`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from mulligan.activities.models._sdk_client import SdkClient
from mulligan.errors import ModelRequestError
from mulligan.schema.error_text import type_name

NO_LOGIN = "There is no login for {cloud} in the worker's environment."


class AnthropicClient(SdkClient):
    """Calls the API by one `AsyncAnthropic`. The default endpoint is ANTHROPIC_BASE_URL, with ANTHROPIC_API_KEY."""

    package = "anthropic"
    default_key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    models_path = "/v1/models"
    kinds = ("bedrock", "vertex")

    @property
    def is_of_cloud(self) -> bool:
        """Whether the endpoint is that of a cloud, which has no automatic cache, and no list of models."""
        return self._endpoint is not None and self._endpoint.kind is not None

    async def _models(self) -> dict[str, Any]:
        if self._endpoint is None or self._endpoint.kind is None:
            return await super()._models()
        client = await self._client()
        try:
            if self._endpoint.kind == "vertex":
                await client._ensure_access_token()
            elif client.api_key is None:
                import boto3

                if await asyncio.to_thread(boto3.Session().get_credentials) is None:
                    raise ModelRequestError(NO_LOGIN.format(cloud="AWS"))
        except ImportError as missing:
            raise ModelRequestError(f"The package {missing.name} is not installed; install mulligan[s3].") from None
        except Exception as error:
            if isinstance(error, ModelRequestError):
                raise
            raise ModelRequestError(f"{NO_LOGIN.format(cloud='Google')} ({type_name(error)})") from None
        return {}

    def _events(self, stream: Any) -> AsyncIterator[str] | None:
        if self._endpoint is None or self._endpoint.kind != "bedrock":
            return None
        return _data(stream._iter_events())

    def _create(self, sdk: Any, options: dict[str, Any]) -> Any:
        options["open_telemetry"] = False  # Mulligan writes the spans
        endpoint, kind = self._endpoint, self._endpoint.kind if self._endpoint else None
        try:
            if endpoint is not None and kind == "bedrock":
                options |= {"base_url": endpoint.base_url, "aws_region": endpoint.region}
                return sdk.AsyncAnthropicBedrock(api_key=self._cloud_key(), **options)
            if endpoint is not None and kind == "vertex":
                self._cloud_key()
                options |= {"base_url": endpoint.base_url, "region": endpoint.region or ""}
                return sdk.AsyncAnthropicVertex(project_id=endpoint.project or "", **options)
            url = endpoint.base_url.rstrip("/").removesuffix("/v1") if endpoint and endpoint.base_url else None
            client = sdk.AsyncAnthropic(api_key=self._key(), base_url=url, **options)
        except (sdk.AnthropicError, ValueError, ImportError) as error:
            of = kind or "the package anthropic"
            raise ModelRequestError(f"The client of {of} cannot be created: {error}") from None
        if not (client.api_key or client.auth_token or client.credentials):
            raise self._no_key()
        return client


async def _data(events: AsyncIterator[Any]) -> AsyncIterator[str]:
    """The data of the events of AWS's binary streams, as the package decodes them."""
    async for event in events:
        if event.data:
            yield event.data
