"""What the two OpenAI providers share: the client, what its errors mean, and what makes an echoed call legal.

Requests go through the package's client (its environment, authentication, proxies, connection pool) but the JSON on
both sides is handled here: the package's models would hide what compatible servers send, and refuse settings that they
do not know. So `openai` is imported at the first request only, and workers without its models never pay for it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from mulligan.activities.models._read_response import Pieces, read, read_pieces
from mulligan.activities.models._strict_schema import strict
from mulligan.activities.models.protocol import Request, Unavailable
from mulligan.errors import ModelRequestError
from mulligan.values import well_formed
from mulligan.wire.agent_facts import OutputFormat

if TYPE_CHECKING:
    import openai
    from openai._types import RequestOptions

CONNECT_TIMEOUT = 10.0
"""Seconds to reach the endpoint: a dead address must not use up the time that a slow answer may take."""
LONGEST_TOLD = 2_000
"""Characters of a provider's message that an error keeps: it goes into history."""
WORTH_ANOTHER_TRY = frozenset({408, 409, 429})
NO_KEY = "There is no key for the model's endpoint: set OPENAI_API_KEY (any text, if the server asks for none)."
BAD_HEADER = "The request could not be sent: OPENAI_API_KEY, or another header, holds what HTTP headers cannot."
_ABOUT_STREAMING = re.compile(r"\bstream", re.IGNORECASE)
"""What servers say: "Unsupported value: 'stream' does not support true with this model."; and that an organisation must be
verified to stream it."""
BAD_URL = "The request could not be sent: OPENAI_BASE_URL is no http:// or https:// address."


class OpenAIClient:
    """One `AsyncOpenAI` for all requests, made when the first one is sent."""

    def __init__(self) -> None:
        self._made: tuple[asyncio.AbstractEventLoop, openai.AsyncOpenAI] | None = None
        self._whole_only: dict[tuple[str, str], str] = {}
        """Which endpoints (path, model) are not asked for pieces, and why."""
        self._never_counting: set[tuple[str, str]] = set()

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        name: str,
        items: Sequence[str],
        timeout: float,
        pieces: Callable[[], Pieces] | None = None,
    ) -> dict[str, Any]:
        """Send a request, with `items` (as `written`) as the body's last field `name`, and read the object that comes back.

        With `pieces` the answer is asked for in pieces. An endpoint that refuses that is asked once more without, at once,
        and so from then on. One that tells no usage with pieces is asked without from then on, if it tells it then:
        limits count tokens.

        Raises:
            ModelRequestError: it was refused, or cannot be sent.
            Unavailable: worth another try.
        """
        body = {field: value for field, value in body.items() if field not in (name, "stream", "stream_options")}
        endpoint = path, str(body.get("model"))
        is_refused = False
        if pieces is not None and endpoint not in self._whole_only:
            try:
                answer = await self._post(path, body, name, items, timeout, pieces())
            except ModelRequestError as refused:
                if refused.status not in (400, 422) or not _ABOUT_STREAMING.search(refused.message):
                    raise
                is_refused = True
            else:
                if not answer.get("usage") and endpoint not in self._never_counting:
                    self._whole_only[endpoint] = "to count"
                return answer
        answer = await self._post(path, body, name, items, timeout)
        if is_refused:
            self._whole_only[endpoint] = "refused"
        elif self._whole_only.get(endpoint) == "to count" and not answer.get("usage"):
            self._never_counting.add(endpoint)
            del self._whole_only[endpoint]
        return answer

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        name: str,
        items: Sequence[str],
        timeout: float,
        pieces: Pieces | None = None,
    ) -> dict[str, Any]:
        # Last, so that requests of a run differ at their ends only: servers cache by prefix.
        others = written({**body, **(pieces.asks if pieces else {})})
        content = f"{others[:-1]},{written(name)}:[{','.join(items)}]}}".encode()
        client = await self._client()
        import httpx2
        import openai

        options: RequestOptions = {
            "timeout": openai.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT)),
            "security": {"bearer_auth": True},  # never the admin key, which `post` would send as well
        }
        # Errors are not chained: Temporal would put their causes, which may quote headers, into history.
        try:
            if pieces is None:
                return read(await client.post(path, cast_to=str, content=content, options=options))
            kind = openai.AsyncStream[object]
            async with await client.post(
                path, cast_to=object, content=content, options=options, stream=True, stream_cls=kind
            ) as stream:
                return await read_pieces(stream.response, pieces)
        except openai.APIError as error:
            raise classify(error) from None
        except httpx2.HTTPError as error:
            raise _not_reached(error, client.base_url.host) from None
        except UnicodeEncodeError:
            raise ModelRequestError(BAD_HEADER) from None

    async def close(self) -> None:
        """Close the connections. The next request opens others."""
        made, self._made = self._made, None
        if made is not None:
            await made[1].close()

    async def _client(self) -> openai.AsyncOpenAI:
        # Connections belong to the event loop that opened them.
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            # Imported in a thread: it takes 0.8 s, and the loop has other runs to look after.
            await asyncio.to_thread(importlib.import_module, "openai")
            if self._made is None or self._made[0] is not loop:
                self._made = loop, _new_client()
        return self._made[1]


def written(value: object) -> str:
    """A body, or an item of it, as JSON: items once, and then kept, as a conversation of megabytes is sent at each step.

    Raises:
        ModelRequestError: it cannot be written.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode().decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelRequestError(f"The request cannot be written as JSON: {error}.") from None


def classify(error: openai.APIError) -> ModelRequestError | Unavailable:
    """What an error of the package means for the run. No message has a header or the key in it."""
    from openai import APIStatusError

    if not isinstance(error, APIStatusError):
        return _not_reached(error.__cause__, error.request.url.host)
    told = _told(error.body)
    # Servers have been seen to quote the key that they do not know.
    if key := error.request.headers.get("authorization", "").removeprefix("Bearer "):
        told = told.replace(key, "[key]")
    wait = retry_after(error.response.headers)
    return of_status(error.status_code, told, retry_after=wait, request_id=error.request_id)


def of_status(
    status: int, told: str, *, retry_after: float | None = None, request_id: str | None = None
) -> ModelRequestError | Unavailable:
    """The error for a status: 408, 409, 429 and 5xx are worth another try (the contract, section 3)."""
    if status in WORTH_ANOTHER_TRY or status >= 500:
        return Unavailable(f"the endpoint answered {status}: {told}", status=status, retry_after=retry_after)
    hint = " (Is OPENAI_API_KEY right?)" if status == 401 else ""
    message = f"The model's endpoint refused the request ({status}): {told}{hint}"
    return ModelRequestError(message, status=status, request_id=request_id)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the endpoint asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date.

    RFC 9110, 10.2.3. A date counts from the response's own `Date`: the two clocks need not agree.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    until = _timestamp(headers.get("retry-after"))
    if until is None:
        return None
    now = _timestamp(headers.get("date"))
    return max(0.0, until - (time.time() if now is None else now))


def settings_of(request: Request) -> dict[str, Any]:
    """The agent's model settings as fields of the body; what is about tools only where there are tools."""
    settings = dict(request.settings)
    extra = settings.pop("extra_body", None)  # the package's name for what its types do not know
    if isinstance(extra, Mapping):
        settings.update(extra)
    if not request.definition.tools:
        settings.pop("tool_choice", None)
        settings.pop("parallel_tool_calls", None)
    elif not request.parallel_tool_calls:
        # True is every server's default, and some models refuse the very word.
        settings["parallel_tool_calls"] = False
    return settings


def json_schema_of(output: OutputFormat) -> dict[str, Any]:
    """The fields of a `json_schema` format: strict where strict mode takes the schema, else the schema as it is."""
    schema = strict(output.json_schema)
    described = {"description": output.description} if output.description else {}
    return {"name": output.name, **described, "schema": schema or output.json_schema, "strict": schema is not None}


def as_text(value: object) -> str:
    """What should be text and, with sloppy servers, is not always: null, or JSON in place of its text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def count(data: object, *path: str) -> int:
    """A number of tokens somewhere in `usage`; 0 where a server does not tell it."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, int) and data > 0 else 0


def _new_client() -> openai.AsyncOpenAI:
    from openai import AsyncOpenAI, OpenAIError

    try:
        # No retries of its own: Temporal's outlive the worker, hold none while they wait, and can be seen.
        client = AsyncOpenAI(max_retries=0)
    except OpenAIError:
        raise ModelRequestError(NO_KEY) from None
    if not client.api_key:  # an admin key alone satisfies the package, and opens nothing here
        raise ModelRequestError(NO_KEY)
    return client


def _not_reached(cause: BaseException | None, at: str) -> ModelRequestError | Unavailable:
    """The endpoint was not reached, did not answer in time, or broke off; or the request could not even be sent."""
    what = type(cause).__name__
    if what == "LocalProtocolError":
        return ModelRequestError(BAD_HEADER)
    if what == "UnsupportedProtocol":
        return ModelRequestError(BAD_URL)
    if "Timeout" in what:
        return Unavailable(f"no answer from {at} in time ({what})")
    return Unavailable(f"the connection to {at} failed ({what}{f': {cause}' if str(cause) else ''})")


def _told(body: object) -> str:
    """The provider's own words in the body of an error: OpenAI's form, or one of the many others."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            code = body.get("code")
            body = body[name]
            if code and isinstance(body, str) and str(code) not in body:
                body = f"{body} ({code})"  # `insufficient_quota` is waited for as well, but one should see it
    told = "" if body is None else as_text(body).strip()
    if told.startswith("<"):
        return "a page of HTML"
    return str(well_formed(told[:LONGEST_TOLD])) or "nothing was said"


def _timestamp(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None
