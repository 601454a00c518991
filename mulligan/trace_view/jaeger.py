"""The spans of a trace as Jaeger has them, by its query API (v3: OTLP in JSON)."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import httpx2

from mulligan.trace_view.span import TraceSpan

__all__ = ["DEFAULT_URL", "NotJaeger", "NotReachable", "spans_of", "without_secrets"]

DEFAULT_URL = "http://localhost:16686"
_ERROR = (2, "STATUS_CODE_ERROR")
_QUICKLY = httpx2.Timeout(30, connect=2)


class NotReachable(Exception):
    """Nobody answers there."""


class NotJaeger(Exception):
    """What answers there does not answer as Jaeger does."""


async def spans_of(trace_id: str, url: str) -> list[TraceSpan]:
    """The spans of a trace, each once; none where Jaeger does not have it.

    Raises:
        NotReachable: no server is there, or it does not answer in time.
        NotJaeger: what it answers cannot be understood.
    """
    # No proxy stands between a person and this machine's own Jaeger, whatever the environment says of proxies.
    async with httpx2.AsyncClient(timeout=_QUICKLY, trust_env=url != DEFAULT_URL) as client:
        try:
            # Raw: Jaeger's adjusters move spans in time where the clocks of two hosts seem to differ.
            answer = await client.get(f"{url}/api/v3/traces/{trace_id}", params={"raw_traces": "true"})
        except (httpx2.ConnectError, httpx2.TimeoutException) as error:
            raise NotReachable(str(error) or type(error).__name__) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NotJaeger(str(error) or type(error).__name__) from error
    try:
        body = answer.json()
        if answer.status_code == httpx2.codes.NOT_FOUND and "error" in body:
            return []
        if answer.status_code != httpx2.codes.OK:
            raise NotJaeger(f"status {answer.status_code}")
        return read(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotJaeger(f"status {answer.status_code}, and no trace in OTLP's JSON") from error


def read(body: dict[str, Any]) -> list[TraceSpan]:
    """The spans in an answer of the API. A span that was exported twice is there once."""
    found: dict[str, TraceSpan] = {}
    for resource in body["result"].get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                one = _span(span)
                found[one.span_id] = one
    return list(found.values())


def without_secrets(url: str) -> str:
    """The URL without a name and password that it may hold."""
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
    """Hexadecimal as OTLP's JSON has it, or base64 as protobuf's own JSON does: 16 characters, or 12."""
    try:
        return text if len(text) != 12 else base64.b64decode(text, validate=True).hex()
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no span id") from error


def _value(value: dict[str, Any]) -> Any:
    for kind, plain in value.items():
        if kind == "intValue":  # JSON has no 64-bit integers: it comes as a string
            return int(plain)
        if kind == "arrayValue":
            return [_value(item) for item in plain.get("values", [])]
        if kind == "kvlistValue":
            return {pair["key"]: _value(pair.get("value", {})) for pair in plain.get("values", [])}
        return plain
    return None
