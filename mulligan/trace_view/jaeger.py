"""Fetches the spans of a trace from Jaeger's query API (v3: OTLP in JSON)."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import httpx2

from mulligan.trace_view.trace_span import TraceSpan

DEFAULT_URL = "http://localhost:16686"
_ERROR = (2, "STATUS_CODE_ERROR")
_TIMEOUT = httpx2.Timeout(30, connect=2)


class NotReachable(Exception):
    """No server answers at the address in time."""


class NotJaeger(Exception):
    """The server at the address does not respond as Jaeger does."""


async def spans_of(trace_id: str, url: str) -> list[TraceSpan]:
    """The spans of a trace, each once; none if Jaeger does not have the trace.

    Raises:
        NotReachable: no server answers in time.
        NotJaeger: the response cannot be parsed.
    """
    # The environment's proxies are not for a Jaeger on this machine.
    async with httpx2.AsyncClient(timeout=_TIMEOUT, trust_env=url != DEFAULT_URL) as client:
        try:
            # Raw: Jaeger's adjusters move spans in time where the clocks of two hosts seem to differ.
            response = await client.get(f"{url}/api/v3/traces/{trace_id}", params={"raw_traces": "true"})
        except (httpx2.ConnectError, httpx2.TimeoutException) as error:
            raise NotReachable(str(error) or type(error).__name__) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NotJaeger(str(error) or type(error).__name__) from error
    try:
        body = response.json()
        if response.status_code == httpx2.codes.NOT_FOUND and "error" in body:
            return []
        if response.status_code != httpx2.codes.OK:
            raise NotJaeger(f"status {response.status_code}")
        return read(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotJaeger(f"status {response.status_code}, and no trace in OTLP's JSON") from error


def read(body: dict[str, Any]) -> list[TraceSpan]:
    """The spans in a response of the API. A span that was exported twice is in the list once."""
    spans: dict[str, TraceSpan] = {}
    for resource in body["result"].get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                parsed = _span(span)
                spans[parsed.span_id] = parsed
    return list(spans.values())


def without_secrets(url: str) -> str:
    """The URL without user name, password and query."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _span(span: dict[str, Any]) -> TraceSpan:
    status = span.get("status", {})
    return TraceSpan(
        span_id=_id(span["spanId"]),
        parent_id=_id(span.get("parentSpanId", "")),
        name=str(span["name"]),
        start=int(span["startTimeUnixNano"]) / 1e9,
        end=int(span["endTimeUnixNano"]) / 1e9,
        is_error=status.get("code") in _ERROR,
        message=str(status.get("message", "")),
        attributes={pair["key"]: _value(pair.get("value", {})) for pair in span.get("attributes", [])},
    )


def _id(text: str) -> str:
    """An id in hexadecimal, from hexadecimal (OTLP's JSON: 16 characters) or base64 (protobuf's JSON: 12 characters)."""
    try:
        return text if len(text) != 12 else base64.b64decode(text, validate=True).hex()
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a span id") from error


def _value(value: dict[str, Any]) -> Any:
    for kind, plain in value.items():
        if kind == "intValue":  # a string, as JSON has no 64-bit integers
            return int(plain)
        if kind == "arrayValue":
            return [_value(item) for item in plain.get("values", [])]
        if kind == "kvlistValue":
            return {pair["key"]: _value(pair.get("value", {})) for pair in plain.get("values", [])}
        return plain
    return None
