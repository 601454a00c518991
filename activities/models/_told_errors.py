"""Errors that endpoints tell in an answer with the status 200: in place of it, within a stream, or beside a part of it.

Servers and gateways have many forms for them. One that is overlooked is worse than one that is read wrongly: then half of
an answer is taken for the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.activities.models._http_errors import (
    PERMANENT_ERROR_CODES,
    WORDS_OF_ERRORS,
    error_of_status,
    has_permanent_code,
    message_in,
)
from mulligan.activities.models._refused_answers import refused_answer
from mulligan.activities.models.protocol import Unavailable, Written
from mulligan.errors import ModelRequestError

PERMANENT_CODES = PERMANENT_ERROR_CODES | {
    "bio_policy",
    "data_residency_mismatch",
    "empty_image_file",
    "misalignment_policy_violation",
}
"""The codes of errors that would come again, where `_STATUS_OF_CODE` does not say so
(openai.types.responses.ResponseError)."""
_STATUS_OF_CODE = (
    (429, "rate_?limit|too_?many|resource_?exhausted|throttl|quota"),
    (
        503,
        r"unavailable|busy|capacity|balancer|temporar|^enotfound|(session|worker|cache|backend|host|node)_?not_?found",
    ),
    (504, "time_?out|timed_?out|deadline"),
    (529, "overloaded"),
    (500, r"server|internal|^api_error|upstream|gateway|invalid_(\w*_)?(response|chunk|state)"),
    (402, "billing|balance|arrears|payment"),
    (403, "permission|forbidden|denied|(access|account)_?terminated"),
    (401, "auth|api_?key|invalid_?token|token_?expired"),
    (404, "not_?found|does_?not_?exist|no_?such"),
    (413, "too_?large"),
    (400, "invalid|bad_?request|context_(length|size|window)|too_small|image_parse|content_policy|failed_precondition"),
    (400, "unsupported"),
)
"""The HTTP status that a code or a type in words stands for: the first that fits. Those that pass come first."""
_STATUS_OF_WORDS = (
    (
        401,
        r"\b(invalid|incorrect|wrong|missing|no|expired|unknown)\W+(?!available)(?:\w+\W+)?(api.?key|credentials?)\b",
    ),
    (
        401,
        r"\b(invalid|incorrect|expired|missing)\W+(access|auth\w*|bearer|api)\W+token\b|^(invalid|expired) token\b(?! id)",
    ),
    (401, r"api.?key\b.{0,60}\b(invalid|incorrect|not valid|expired|missing|revoked|disabled|not found)"),
    (401, r"access token invalid|provide an api.?key|unauthori[sz]ed|unauthenticated|not authenticated|login fail"),
    (401, r"authentication (failed|fails|error|required)"),
    (402, r"insufficient (account )?(balance|credits?|funds)"),
    (403, r"^(forbidden|access denied)\b"),
    (429, r"rate.?limit|too many requests|\bper (second|minute|hour|day)|throttl"),
    (503, r"try again|retry|wait|temporar|overload|\bloading|\bbusy|unavailable"),
    (404, r"\bmodel\b(?! (server|worker|instance|process)).{0,200}\b(not found|(does|did) not exist|not exist)"),
    (
        400,
        r"(maximum|exceed|larger|longer|beyond)\b.{0,80}\bcontext (length|size|window)|context (length|size|window) exceed",
    ),
    (400, r"prompt is too long|too many (input |prompt )?tokens"),
)
"""The same for the message of an error whose codes say nothing. What may pass is no refusal, unless it is about a key."""
_STATUS_OF_MINIMAX = {1002: 429, 1004: 401, 1008: 402, 1026: 400, 1027: 400, 1039: 400, 2013: 400, 2049: 401}
"""Of `base_resp.status_code` (MiniMax)."""
_CODES = ("code", "status", "status_code", "http_status", "error_code", "type")
_OF_ANSWERS = frozenset({"choices", "candidates", "output", "content", "response", "type"})
"""Fields of which each answer, and each event of a stream, has one."""
_TEXTS = ("content", "text", "refusal", "reasoning_content", "thinking", "arguments", "partial_json")


def may_tell_error(data: str, event: Mapping[str, Any]) -> bool:
    """Whether to look for an error in an event of a stream. `data`: its text, which is quickly searched: most have none."""
    return "error" in data or "base_resp" in data or "\\u" in data or event.keys().isdisjoint(_OF_ANSWERS)


def error_in(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part of an answer, or of an event of a stream, that tells an error; None if there is none."""
    if _says(answer.get("error")) or "error" in (answer.get("object"), answer.get("type")):
        return dict(answer)
    if _minimax(answer):
        return {"error": answer["base_resp"], **answer}
    for field in ("choices", "candidates", "output"):
        for each in _objects(answer.get(field)):
            # A hosted tool's error is the model's to handle.
            is_ours = field != "output" or each.get("type") in ("message", "function_call", "reasoning")
            for holder in (each, each.get("delta"), each.get("message")):
                if is_ours and isinstance(holder, Mapping) and _says(holder.get("error")):
                    return {"error": holder["error"]}
    is_answer = not answer.keys().isdisjoint(_OF_ANSWERS)
    return dict(answer) if not is_answer and answer.keys() & {*WORDS_OF_ERRORS} and _status(answer) else None


def raise_told(answer: Mapping[str, Any], key_variable: str, *, lacks: str = "") -> None:
    """Raise the error that an answer tells, as an HTTP error of its code would be.

    Args:
        answer: The answer.
        key_variable: As for `error_of_status`.
        lacks: What the answer has not, that it must have: then it is an error in any case.

    Raises:
        ModelRequestError: the endpoint refuses the request, and would refuse it again.
        Unavailable: the request may be retried.
    """
    told = error_in(answer)
    if told is None and not lacks:
        return
    told = told or dict(answer)
    if (refused := refused_answer(told)) is not None:
        raise refused
    message, status = message_in(told), _status(told)
    codes = {str(code) for code in _codes(told)}
    if codes & PERMANENT_CODES and status is None:
        raise ModelRequestError(f"The model's endpoint answered with an error: {message}")
    if status is not None:
        is_permanent = has_permanent_code(told) or bool(codes & PERMANENT_CODES)
        raise error_of_status(status, message, is_permanent=is_permanent, key_variable=key_variable)
    if lacks:
        raise Unavailable(f"the endpoint's answer has no {lacks}: {message}")
    raise Unavailable(f"the endpoint answered with an error: {message}")


def count_failed(answer: Mapping[str, Any], written: Written) -> None:
    """Add what an answer that failed has of texts, thoughts and calls, unless it was streamed: it was paid for."""
    if not written.size:
        for field in ("choices", "candidates", "output", "content"):
            for piece in _texts(answer.get(field)):
                written.add(piece)


def _says(error: object) -> bool:
    """Whether a field says that there was an error. Some servers send it with every answer, empty."""
    return any(map(_says, error.values())) if isinstance(error, Mapping) else error not in (None, "", [], False, 0)


def _minimax(answer: Mapping[str, Any]) -> bool:
    told = answer.get("base_resp")
    return isinstance(told, Mapping) and told.get("status_code") not in (None, 0, "0", "")


def _status(told: Mapping[str, Any]) -> int | None:
    """The HTTP status that the codes of an error stand for, or its message."""
    if _minimax(told):
        return _STATUS_OF_MINIMAX.get(_number(told["base_resp"]["status_code"]))
    codes = list(_codes(told))
    for number in map(_number, codes):
        status = number // 100 if 40_000 <= number < 60_000 else number  # FastChat's codes have two digits more
        if 400 <= status < 600:
            return status
    words = ((_STATUS_OF_CODE, code.lower()) for code in codes if isinstance(code, str))
    for table, text in (*words, (_STATUS_OF_WORDS, message_in(told).lower())):
        for status, pattern in table:
            if re.search(pattern, text):
                return status
    return None


def _codes(told: Mapping[str, Any]) -> Iterator[int | str]:
    """The codes of an error, and of errors in it; the innermost come first, and their types after their codes."""
    inner = told.get("error")
    if isinstance(inner, Mapping):
        yield from _codes(inner)
    for name in _CODES:
        code = told.get(name)
        if isinstance(code, int | str) and not isinstance(code, bool) and str(code).lower() not in _NO_CODES:
            yield code


_NO_CODES = ("", "0", "none", "null", "error", "failed", "response.failed", "false", "unknown")


def _number(code: object) -> int:
    return int(str(code)) if re.fullmatch(r"\d{1,6}", str(code)) else 0


def _texts(value: object) -> Iterator[str]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        if isinstance(inner, str) and (name in _TEXTS or isinstance(value, list)):
            yield inner
        else:
            yield from _texts(inner)


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
