"""The meaning of an endpoint's HTTP errors, for every provider: what may be retried, when, and what the error says."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelRequestError
from mulligan.values import well_formed

MAX_MESSAGE_CHARS = 2_000
"""Characters of a provider's message that an error keeps: errors are recorded in history."""
RETRYABLE_STATUSES = frozenset({408, 409, 429})
"""Beside 5xx."""
PERMANENT_ERROR_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "account_deactivated",
        "access_terminated",
    }
)
"""Codes of errors with a retryable status (429) that last until somebody pays or changes the account: no retry helps."""
WORDS_OF_ERRORS = ("error", "message", "detail", "status_msg", "error_msg", "errors", "msg")
"""The fields in which endpoints say what went wrong, the outer ones first."""

_OF_ANOTHER_KEY = re.compile(r"\b[A-Z]\w+Exception\b|\blitellm\.|^\w+ error:|\b(upstream|provider)\b", re.IGNORECASE)
"""In the messages of gateways whose own key at a provider was refused: "litellm.AuthenticationError: AnthropicException
- …", "openai error: Incorrect API key provided" (Portkey)."""

_OVERFLOW_STATUSES = frozenset({400, 413, 422})
_OVERFLOW = re.compile(
    "|".join(
        (
            r"context_(length|window|size)_?exceed|ContextWindowExceeded",  # OpenAI and its followers; LiteLLM
            r"\bcontext (length|window|size)\b.{0,40}\b(exceed|overflow|limit)|\bcontext.{0,20}overflow",
            # MiniMax, LM Studio; OpenAI, vLLM, SGLang, Mistral, OpenRouter, llama.cpp
            r"\b(maximum|exceed\w*|larger|longer|beyond|greater|over)\b.{0,80}\bcontext (length|window|size)\b",
            r"\bprompt is too long|\binput is too long|too many (input |prompt )?tokens",  # Anthropic, Bedrock
            r"\bmaximum prompt length\b|\bprompt exceeds|exceeded model token limit",  # xAI, GLM, Kimi
            r"\binput token count\b.{0,40}\bexceed",  # Google
            r"\btokens` \+ `max_new_tokens`? must be|`inputs` tokens \+",  # Together, TGI
        )
    ),
    re.IGNORECASE,
)
_OTHER_LIMITS = re.compile(r"\bper (second|minute|hour|day)\b|\bTPM\b|rate.?limit", re.IGNORECASE)
"""Of a rate: Groq answers 413 to a request that has more tokens than a minute allows."""


def error_of_status(
    status: int,
    message: str,
    *,
    retry_after: float | None = None,
    request_id: str | None = None,
    is_permanent: bool = False,
    key_variable: str,
) -> ModelRequestError | Unavailable:
    """The error for a status: 408, 409, 429 and 5xx may be retried, unless the error's code says that it `is_permanent`.

    `key_variable`: the environment variable with our key, of which the error may remind; "": there is none.
    """
    if (status in RETRYABLE_STATUSES or status >= 500) and not is_permanent:
        return Unavailable(f"the endpoint answered {status}: {message}", status=status, retry_after=retry_after)
    is_ours = status == 401 and bool(key_variable) and not _OF_ANOTHER_KEY.search(message)
    hint = f" (Is {key_variable} right?)" if is_ours else ""
    is_overflow = tells_overflow(status, message)
    if is_overflow:
        hint = " (The conversation is too long for the model; the feature `Compaction` sums up its older part.)"
    text = f"The model's endpoint refused the request ({status}): {message}{hint}"
    return ModelRequestError(text, status=status, request_id=request_id, is_overflow=is_overflow)


def tells_overflow(status: int, message: str) -> bool:
    """Whether an endpoint has refused a request as too long for the model."""
    return status in _OVERFLOW_STATUSES and bool(_OVERFLOW.search(message)) and not _OTHER_LIMITS.search(message)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the endpoint asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date (RFC 9110, 10.2.3).

    A date counts from the response's own `Date`: the clocks of both machines may differ.
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


def has_permanent_code(body: object) -> bool:
    """Whether the body of an error, or the `error` in it, has one of the PERMANENT_ERROR_CODES as its code or its type."""
    error = body.get("error") if isinstance(body, dict) else None
    return any(
        isinstance(part, dict) and any(str(part.get(name)) in PERMANENT_ERROR_CODES for name in ("code", "type"))
        for part in (body, error)
    )


def message_in(body: object) -> str:
    """The provider's message in the body of an error: in OpenAI's form, or in one of the many others."""
    for name in WORDS_OF_ERRORS:
        if isinstance(body, dict) and body.get(name) and body[name] is not True:
            code, upstream = body.get("code"), _of_upstream(body)
            body = body[name]
            if isinstance(code, str) and isinstance(body, str) and not code.isdecimal() and code and code not in body:
                body = f"{body} ({code})"  # such as `insufficient_quota`
            if upstream and isinstance(body, str):
                body = f"{body}: {upstream}"
    message = "" if body is None else as_text(body).strip()
    if message.startswith("<"):
        return "a page of HTML"
    return str(well_formed(message[:MAX_MESSAGE_CHARS])) or "nothing was said"


def _of_upstream(error: Mapping[str, object]) -> str:
    """What an upstream of a gateway says (OpenRouter), as it came."""
    metadata = error.get("metadata")
    return as_text(metadata.get("raw")).strip() if isinstance(metadata, Mapping) else ""


def _timestamp(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None
