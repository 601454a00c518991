"""Errors in answers: one that may pass is retried, a refusal ends the run, whatever words a server has for them."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.activities.models._told_errors import raise_told
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelRequestError

PASSING_WORDS = (
    "Too many tokens, please wait before trying again.",  # Bedrock
    "Rate limit reached: too many tokens per minute",
    "no token received within 30 s",
    "Invalid token id 151645 sampled",
    "The model server was not found",
    "The model is loading; the session was not found",
    "The context window service has gone",
    "No available API key in the pool",
)
PASSING_CODES = (
    "ENOTFOUND",
    "load_balancer_error",
    "stream_terminated",
    "invalid_response",
    "response_parse_error",
    "authentication_service_unavailable",
    "session_not_found",
)
REFUSALS = (
    {"message": "Invalid token", "type": "one_api_error"},
    {"message": "Incorrect API key provided", "type": "new_api_error"},
    {"message": "Wrong API key, please try again"},
    {"message": "Your API key has been revoked"},
    {"message": "You didn't provide an API key."},
    {"message": "Insufficient Balance", "type": "unknown_error"},
    {"message": "This model's maximum context length is 8192 tokens."},
    {"message": "The model `q` does not exist", "type": "unknown"},
    {"message": "no", "code": "access_terminated"},
)


@pytest.mark.parametrize(
    "error",
    [*({"message": each} for each in PASSING_WORDS), *({"message": "gone", "code": each} for each in PASSING_CODES)],
)
def test_an_error_that_may_pass_is_retried(error: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        raise_told({"error": error}, "KEY")


@pytest.mark.parametrize("error", REFUSALS)
def test_a_refusal_ends_the_run(error: dict[str, Any]) -> None:
    with pytest.raises(ModelRequestError):
        raise_told({"error": error}, "KEY")
