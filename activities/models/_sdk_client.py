"""Requests through the client of a provider's official package: `openai` or `anthropic`, which are built alike.

Requests go through the package's client (its environment variables, authentication, proxies, connection pool), but the JSON
of both directions is handled here: the package's models would hide what compatible servers send, and refuse settings that
they do not know. So the package is imported at the first request only, and workers without its models never pay for that.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from mulligan.activities.models import _refusals
from mulligan.activities.models._http_errors import error_of_status, has_permanent_code, message_in, retry_after
from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models._read_response import StreamAssembler, read_events, read_json, read_stream
from mulligan.activities.models._refused_answers import AnswerRefusedError, refused_answer
from mulligan.activities.models._told_errors import count_failed, raise_told
from mulligan.activities.models.protocol import OnCall, Reply, Unavailable, Written
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError

NOT_FOUND = 404
LIST_TIMEOUT = 5.0
"""Seconds for the list of models."""
CONNECT_TIMEOUT = 10.0
"""Seconds to reach the endpoint: a dead address must not use up the time that a slow answer may take."""
NO_KEY = "There is no key for the model's endpoint: set {key} (any text, if the server asks for none)."
BAD_HEADER = "The request could not be sent: {key}, or another header, contains what HTTP headers cannot."
BAD_URL = "The request could not be sent: {url} is not an http:// or https:// address."
PLACEHOLDER_KEY = "none"
"""The key for an endpoint that takes none: the package always sends one."""
MAX_FAILED_STREAMS = 2
"""How many streams of a model fail in a row before their first pieces until it is asked once without streaming. One may be a
chance failure."""
STREAMED_AGAIN_AFTER = 3600.0
"""Seconds for which a model that answers only without streaming is not asked to stream."""
BUSY = (429, 529)
"""Statuses that say nothing about streaming: the endpoint limits us, or has too much to do."""


@dataclass(frozen=True)
class HttpRequest:
    """One request to an endpoint.

    Args:
        path: The path below the base URL.
        body: The fields of the body, without its list of messages.
        items_field: The name of that list.
        items: Its items, each as JSON (`to_json`).
        timeout: Seconds for each read.
        new_assembler: Creates what assembles a streamed response; None: the response is not streamed.
        headers: HTTP headers beside those of the client.
        on_call: As in `Request`.
    """

    path: str
    body: Mapping[str, Any]
    items_field: str
    items: Sequence[str]
    timeout: float
    new_assembler: Callable[[], StreamAssembler] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    on_call: OnCall | None = None

    def content(self, more: Mapping[str, Any]) -> bytes:
        """The body, with `more` fields.

        The items are last, so that the requests of a run differ at their ends only: providers cache by prefix.
        """
        ours = (self.items_field, "stream", "stream_options")
        fields = {name: value for name, value in self.body.items() if name not in ours}
        head = to_json({**fields, **more})[:-1]
        comma = "," if fields or more else ""
        return f"{head}{comma}{to_json(self.items_field)}:[{','.join(self.items)}]}}".encode()

    @property
    def endpoint(self) -> tuple[str, str]:
        """The path and the model: what an endpoint supports may differ between models."""
        return self.path, str(self.body.get("model"))


class NoResponse(Unavailable):
    """There is no connection to the endpoint."""


class SdkClient:
    """One client of the package for all requests to an endpoint, created with the first one.

    Args:
        endpoint: The endpoint; None: the default one, of the package's environment variables.
    """

    package: ClassVar[str]
    """The package, which a subclass creates a client of."""
    default_key_variable: ClassVar[str]
    """The environment variable with the key of the default endpoint."""
    url_variable: ClassVar[str]
    """The environment variable with the address of the default endpoint."""
    models_path: ClassVar[str]
    """The path of the list of models."""
    models_fields: ClassVar[tuple[str, str]] = ("data", "id")
    """The fields with that list, and with the name of a model."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of endpoints of clouds that serve this provider's models."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the package for each request."""

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self._endpoint = endpoint
        self._client_of_loop: tuple[asyncio.AbstractEventLoop, Any] | None = None
        self._whole_until: dict[tuple[str, str], float] = {}
        """Until when endpoints (path, model) are not asked to stream, as they have answered only without."""
        self._asked_for_usage: dict[tuple[str, str], bool] = {}
        """The endpoints whose streams have no usage, and whether their other answers have."""
        self._failed_streams: Counter[tuple[str, str]] = Counter()
        """How many streams of an endpoint have failed in a row before their first pieces."""

    @property
    def key_variable(self) -> str:
        """The environment variable with the key, for texts that say what to change; "": the endpoint takes none."""
        return self._endpoint.api_key_env or "" if self._endpoint else self.default_key_variable

    @property
    def is_default(self) -> bool:
        """Whether the endpoint is the provider's default one."""
        return self._endpoint is None

    def data_key(self, provider: str) -> str:
        """The key in a message's `provider_data` for what only this endpoint understands."""
        return f"{provider}@{self._endpoint.name}" if self._endpoint else provider

    async def post(self, request: HttpRequest) -> dict[str, Any]:
        """Send a request, and return the JSON object of the response.

        With `new_assembler` the response is streamed. An endpoint that refuses to stream is asked again at once without
        streaming, and so is one whose streams failed twice in a row before their first piece. If it answers then, it is not
        asked to stream for an hour. An endpoint that streams no usage is not asked to stream from then on, if it sends
        usage then: token limits need it.

        Raises:
            ModelRequestError: the endpoint refused the request, or it cannot be sent.
            Unavailable: the request may be retried.
        """
        if request.new_assembler is None:
            return await self._send(request)
        endpoint = request.endpoint
        if self._asked_for_usage.get(endpoint, False) or self._whole_until.get(endpoint, 0.0) > time.monotonic():
            answer = await self._whole(request)
            if endpoint in self._asked_for_usage:
                self._asked_for_usage[endpoint] = _has_usage(answer)
            return answer
        assembler = request.new_assembler()
        assembler.on_call = request.on_call or assembler.on_call
        try:
            answer = await self._send(request, assembler)
            raise_told(answer, self.key_variable)
        except ModelRequestError as refused:
            if refused.status not in (400, 422) or not _refusals.STREAMING.search(refused.message):
                raise
            return await self._whole_for_an_hour(request)
        except Unavailable as failed:
            return await self._after_failed_stream(request, failed, has_begun=assembler.has_begun)
        self._failed_streams.pop(endpoint, None)
        if not _has_usage(answer) and assembler.has_begun:
            self._asked_for_usage.setdefault(endpoint, True)
        return answer

    async def _after_failed_stream(
        self, request: HttpRequest, failed: Unavailable, *, has_begun: bool
    ) -> dict[str, Any]:
        """The answer without streaming, if it is time to ask for that. Otherwise the failure is raised."""
        endpoint = request.endpoint
        if has_begun:
            self._failed_streams.pop(endpoint, None)
        elif failed.status not in BUSY and failed.retry_after is None and not isinstance(failed, NoResponse):
            self._failed_streams[endpoint] += 1
        if has_begun or self._failed_streams[endpoint] < MAX_FAILED_STREAMS:
            raise failed
        del self._failed_streams[endpoint]
        try:
            return await self._whole_for_an_hour(request)
        except (Unavailable, ModelRequestError):
            raise failed from None

    async def _whole_for_an_hour(self, request: HttpRequest) -> dict[str, Any]:
        answer = await self._whole(request)
        self._whole_until[request.endpoint] = time.monotonic() + STREAMED_AGAIN_AFTER
        return answer

    async def _whole(self, request: HttpRequest) -> dict[str, Any]:
        answer = await self._send(request)
        raise_told(answer, self.key_variable)
        return answer

    async def _send(self, request: HttpRequest, assembler: StreamAssembler | None = None) -> dict[str, Any]:
        body = self._body(request, assembler.request_fields if assembler else {})
        async with self._client_with_our_errors() as client:
            options = {**self.options, "timeout": _timeout(request.timeout), "headers": dict(request.headers)}
            if assembler is None:
                return read_json(await client.post(request.path, cast_to=str, options=options, **body))
            kind = importlib.import_module(self.package).AsyncStream[object]
            async with await client.post(
                request.path, cast_to=object, options=options, stream=True, stream_cls=kind, **body
            ) as stream:
                return await read_stream(stream.response, assembler, self._events(stream))

    def _body(self, request: HttpRequest, more: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request, as the arguments of the package's `post`. For an endpoint of a cloud it is an object:
        the package reads the model from it, which is part of the path there.
        """
        content = request.content(more)
        return {"body": json.loads(content)} if self._endpoint and self._endpoint.kind else {"content": content}

    def _events(self, stream: Any) -> AsyncIterator[str] | None:  # noqa: ARG002 - for subclasses
        """The data of a stream's events, where they are not server-sent events."""
        return None

    async def call(self, method: Literal["get", "post", "delete"], path: str, timeout: float) -> dict[str, Any]:
        """Send a request without a body, and return the JSON object of the response.

        Raises:
            ModelRequestError: the endpoint refused the request, or it cannot be sent.
            Unavailable: the request may be retried.
        """
        async with self._client_with_our_errors() as client:
            options = {**self.options, "timeout": _timeout(timeout)}
            return read_json(await getattr(client, method)(path, cast_to=str, options=options))

    @asynccontextmanager
    async def events(
        self,
        method: Literal["get", "post"],
        path: str,
        timeout: float,
        *,
        request: HttpRequest | None = None,
        query: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a response that is streamed, during the block; then the connection is closed.

        Args:
            method: The HTTP method.
            path: The path below the base URL.
            timeout: Seconds for each read.
            request: What is sent, with `stream`; None: nothing.
            query: The query of the address.

        Raises:
            ModelRequestError: the endpoint refused the request, or it cannot be sent.
            Unavailable: the request may be retried.
        """
        async with self._client_with_our_errors() as client:
            options = {**self.options, "timeout": _timeout(timeout), "params": dict(query or {})}
            sent: dict[str, Any] = {}
            if request is not None:
                options["headers"] = dict(request.headers)
                sent["content"] = request.content({"stream": True})
            kind = importlib.import_module(self.package).AsyncStream[object]
            opened = getattr(client, method)(
                path, cast_to=object, options=options, stream=True, stream_cls=kind, **sent
            )
            async with await opened as stream, aclosing(read_events(stream.response)) as events:
                yield events

    @asynccontextmanager
    async def _client_with_our_errors(self) -> AsyncIterator[Any]:
        """The package's client. What it raises in the block becomes one of our errors.

        They have no causes: Temporal would record these in history, and they may quote headers.
        """
        client, sdk = await self._client(), importlib.import_module(self.package)
        import httpx2

        try:
            yield client
        except sdk.APIError as error:
            raise self._error_of(error) from None
        except httpx2.HTTPError as error:
            raise self._connection_error(error, client.base_url.host) from None
        except UnicodeEncodeError:
            raise ModelRequestError(BAD_HEADER.format(key=self.key_variable or "the key")) from None

    async def model_names(self) -> list[str] | None:
        """The names of the models that the endpoint lists (`GET /models`). None: it has no such list.

        Raises:
            ModelRequestError: the endpoint refused the request, or it cannot be sent.
            Unavailable: there was no usable response.
        """
        try:
            answer = await self._models()
        except ModelRequestError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        field, name = self.models_fields
        listed = answer.get(field)
        if not isinstance(listed, list):
            return None
        return [str(each[name]) for each in listed if isinstance(each, dict) and name in each]

    async def _models(self) -> dict[str, Any]:
        return await self.call("get", self.models_path, LIST_TIMEOUT)

    async def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        created, self._client_of_loop = self._client_of_loop, None
        if created is not None:
            await self._close_client(created[1])

    async def _close_client(self, client: Any) -> None:
        await client.close()

    async def _client(self) -> Any:
        # Connections belong to the event loop that opened them.
        loop = asyncio.get_running_loop()
        if self._client_of_loop is None or self._client_of_loop[0] is not loop:
            # Imported in a thread: it takes 0.8 s, and the event loop serves other runs meanwhile.
            await asyncio.to_thread(importlib.import_module, self.package)
            if self._client_of_loop is None or self._client_of_loop[0] is not loop:
                self._check_kind()
                self._client_of_loop = loop, self._new_client()
        return self._client_of_loop[1]

    def _check_kind(self) -> None:
        kind = self._endpoint.kind if self._endpoint else None
        if kind is not None and kind not in self.kinds:
            name = self._endpoint.name if self._endpoint else ""
            raise ModelRequestError(f"The endpoint {name!r} is of the kind {kind!r}, which serves no such models.")

    def _key(self) -> str | None:
        """The key that the package's client is created with; None: the package reads the variable of the default endpoint.

        Raises:
            ModelRequestError: the endpoint's variable is not set.
        """
        key = self._cloud_key()
        return PLACEHOLDER_KEY if self._endpoint is not None and key is None else key

    def _check_key(self) -> None:
        """Check that there is a key, as far as that is known without the package's client.

        Raises:
            ModelRequestError: there is none.
        """
        self._cloud_key()

    def _no_key(self) -> ModelRequestError:
        return ModelRequestError(NO_KEY.format(key=self.key_variable))

    def _new_client(self) -> Any:
        """Create the package's client for the endpoint.

        Raises:
            ModelRequestError: there is no key, or the client cannot be created.
        """
        from mulligan.activities._answer_limit import event_hooks

        sdk, endpoint = importlib.import_module(self.package), self._endpoint
        self._check_key()  # before there is an HTTP client, which nobody would close
        http_client = sdk.DefaultAsyncHttpxClient(event_hooks=event_hooks(endpoint))
        # The package does not retry: Temporal's retries survive the worker, take no slot meanwhile, and are visible.
        client = self._create(sdk, {"max_retries": 0, "http_client": http_client})
        if endpoint is not None:
            # The variables of the default endpoint (OPENAI_CUSTOM_HEADERS) are not for this one.
            client._custom_headers = endpoint.resolved_headers()
        return client

    def _create(self, sdk: Any, options: dict[str, Any]) -> Any:
        """Create the client of a package, with options that all have."""
        raise NotImplementedError

    def _cloud_key(self) -> str | None:
        """The key of an endpoint of a cloud; None: the environment has a login.

        Raises:
            ModelRequestError: the endpoint's variable is not set.
        """
        key = self._endpoint.api_key() if self._endpoint else None
        if key == "":
            raise self._no_key()
        return key

    def _error_of(self, error: Any) -> ModelRequestError | Unavailable:
        """Our error for an `APIError` of the package."""
        if not isinstance(error, importlib.import_module(self.package).APIStatusError):
            return self._connection_error(error.__cause__, error.request.url.host)
        if (refused := refused_answer(error.body)) is not None:
            return refused
        return error_of_status(
            error.status_code,
            message_in(error.body),
            retry_after=retry_after(error.response.headers),
            request_id=error.request_id,
            is_permanent=has_permanent_code(error.body),
            key_variable=self.key_variable,
        )

    def _connection_error(self, cause: BaseException | None, host: str) -> ModelRequestError | Unavailable:
        """The error where there is no response: the request could not be sent, or the connection failed or timed out."""
        kind = type(cause).__name__
        if kind == "LocalProtocolError":
            return ModelRequestError(BAD_HEADER.format(key=self.key_variable or "the key"))
        if kind == "UnsupportedProtocol":
            return ModelRequestError(BAD_URL.format(url=self.url_variable))
        if kind in ("DecodingError", "ResponseTooLarge"):
            return Unavailable(f"the answer of {host} cannot be read: {cause}")
        if kind in ("ConnectTimeout", "ConnectError"):
            return NoResponse(f"the connection to {host} failed ({kind}{f': {cause}' if str(cause) else ''})")
        if "Timeout" in kind:
            return Unavailable(f"no answer from {host} in time ({kind})")
        return Unavailable(f"the connection to {host} failed ({kind}{f': {cause}' if str(cause) else ''})")


ClientT = TypeVar("ClientT", bound=SdkClient)


class SdkProvider(Generic[ClientT]):
    """A provider at the endpoint of its client, which reads its key at the first request."""

    _client: ClientT

    async def _ask(self, request: HttpRequest, written: Written, read: Callable[[dict[str, Any]], Reply]) -> Reply:
        """The reply that `read` finds in the answer to a request. What a failed answer has is added to `written`.

        Raises:
            ModelRequestError, Unavailable: the request, or its answer, failed.
        """
        try:
            answer = await self._client.post(request)
        except AnswerRefusedError as refused:
            return refused.reply()
        try:
            return read(answer)
        except (Unavailable, ModelRequestError):
            count_failed(answer, written)
            raise

    async def model_names(self) -> list[str] | None:
        """Return the models that the endpoint lists; None if it has no list. See `SdkClient.model_names`."""
        return await self._client.model_names()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _has_usage(answer: Mapping[str, Any]) -> bool:
    """Whether an answer says how many tokens it took. Zeros say nothing."""
    usage = answer.get("usage")
    return any(isinstance(each, int) and each for each in usage.values()) if isinstance(usage, dict) else bool(usage)


def _timeout(seconds: float) -> Any:
    """The HTTP client's timeout for each read, with less for the connection."""
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT))
