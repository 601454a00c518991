"""The client of the `google-genai` package, for `google:NAME`."""

from __future__ import annotations

import importlib
import re
from typing import Any

from mulligan.activities.models._http_errors import error_of_status, message_in, retry_after
from mulligan.activities.models._read_response import StreamAssembler, read_json, read_stream
from mulligan.activities.models._sdk_client import (
    BAD_HEADER,
    CONNECT_TIMEOUT,
    LIST_TIMEOUT,
    HttpRequest,
    SdkClient,
)
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelRequestError
from mulligan.schema.error_text import type_name


class GoogleClient(SdkClient):
    """One `genai.Client`. The default endpoint is Gemini's API with GEMINI_API_KEY, or what the package's variables say.

    As with the other packages, the JSON of both directions is handled here. This package has no public method for that, so
    two private ones are called: `_build_request` (address, version, project, key) and `_async_request`.
    """

    package = "google.genai"
    default_key_variable = "GEMINI_API_KEY"
    url_variable = "GOOGLE_GEMINI_BASE_URL"
    models_path = "models?pageSize=1000"
    models_fields = ("models", "name")
    kinds = ("vertex",)

    async def _send(self, request: HttpRequest, assembler: StreamAssembler | None = None) -> dict[str, Any]:
        method = "streamGenerateContent?alt=sse" if assembler else "generateContent"
        content = request.content(assembler.request_fields if assembler else {})
        answer = await self._request("post", f"{request.path}:{method}", content, request.timeout, assembler)
        if "usageMetadata" in answer:
            answer["usage"] = answer["usageMetadata"]
        return answer

    async def model_names(self) -> list[str] | None:
        """List the models without the API's prefix (see `SdkClient.model_names`)."""
        names = await super().model_names()
        return names and [name.removeprefix("models/") for name in names]

    async def _models(self) -> dict[str, Any]:
        if self._endpoint is not None and self._endpoint.kind:
            try:
                await (await self._client())._api_client._async_access_token()
            except Exception as error:  # noqa: BLE001 - Google's authentication has no common class of errors
                raise ModelRequestError(
                    f"There is no login for Google here ({type_name(error)}); set GOOGLE_APPLICATION_CREDENTIALS."
                ) from None
            return {}
        return await self._request("get", self.models_path, None, LIST_TIMEOUT, None)

    async def is_vertex(self) -> bool:
        """Whether the package's variables say that models are served by Google Cloud."""
        return bool((await self._client())._api_client.vertexai)

    async def _request(
        self, method: str, path: str, content: bytes | None, timeout: float, assembler: StreamAssembler | None
    ) -> dict[str, Any]:
        client, errors = (await self._client())._api_client, importlib.import_module("google.genai.errors")
        import httpx2

        request = client._build_request(method, path, {})
        request.data = content
        request.timeout = httpx2.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT))
        host = httpx2.URL(request.url).host
        # Errors are raised without their causes: Temporal would record these in history, and they may quote headers.
        try:
            response = (await client._async_request(http_request=request, stream=True)).response_stream
            try:
                if assembler is not None:
                    return await read_stream(response, assembler)
                await response.aread()
                return read_json(response.text)
            finally:
                await response.aclose()
        except errors.APIError as error:
            raise self._status_error(error) from None
        except httpx2.HTTPError as error:
            raise self._connection_error(error, host) from None
        except UnicodeEncodeError:
            raise ModelRequestError(BAD_HEADER.format(key=self.key_variable or "the key")) from None

    def _new_client(self) -> Any:
        import httpx2
        from google import genai
        from google.genai.types import HttpOptions

        from mulligan.activities._answer_limit import event_hooks

        endpoint, key = self._endpoint, None if self._endpoint and self._endpoint.kind else self._key()
        # The package appends the version to the address. It uses a given client of httpx2 as it is, without retries.
        url, version = _split_version(endpoint.base_url) if endpoint and endpoint.base_url else (None, None)
        options = HttpOptions(
            base_url=url,
            api_version=version,
            headers=endpoint.resolved_headers() if endpoint else None,
            httpx_async_client=httpx2.AsyncClient(event_hooks=event_hooks(endpoint)),
        )
        try:
            if endpoint is not None and endpoint.kind:
                client = genai.Client(
                    vertexai=True, http_options=options, project=endpoint.project, location=endpoint.region
                )
            else:
                client = genai.Client(api_key=key, vertexai=False if endpoint else None, http_options=options)
        except Exception as error:  # noqa: BLE001 - its exceptions, and those of Google's authentication, have no common class
            if type(error) is ValueError:
                raise self._no_key() from None
            raise ModelRequestError(f"The client of the package google-genai cannot be created: {error}") from None
        if not (client._api_client.api_key or client._api_client.vertexai):
            raise self._no_key()
        return client

    async def _close_client(self, client: Any) -> None:
        await client._api_client._http_options.httpx_async_client.aclose()
        client.close()

    def _status_error(self, error: Any) -> ModelRequestError | Unavailable:
        """Our error for an `APIError` of the package."""
        received = getattr(error.response, "headers", {})
        wait = retry_after(received)
        return error_of_status(
            error.code,
            message_in(error.details),
            retry_after=_retry_delay(error.details) if wait is None else wait,
            request_id=received.get("x-request-id"),
            key_variable=self.key_variable,
        )


def _split_version(url: str) -> tuple[str, str | None]:
    """The address without the version of the API at its end, and that version."""
    match = re.fullmatch(r"(.*?)(?:/(v1(?:alpha|beta)?[0-9]*))?/*", url)
    return (match[1], match[2]) if match else (url, None)


def _retry_delay(details: Any) -> float | None:
    """Seconds that `google.rpc.RetryInfo` in an error says, such as "37s"."""
    error = details.get("error", details) if isinstance(details, dict) else None
    infos = error.get("details") if isinstance(error, dict) else None
    for info in infos if isinstance(infos, list) else ():
        delay = info.get("retryDelay") if isinstance(info, dict) else None
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                return max(0.0, min(float(delay[:-1]), 1e6))
            except ValueError:
                return None
    return None
