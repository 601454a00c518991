"""The typed errors, on their way through a Temporal failure and back; and the policy that decides who hears of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

import mulligan
from mulligan import (
    InvalidRunInputError,
    InvalidToolInputError,
    ModelRequestError,
    MulliganError,
    MultipleStructuredOutputsError,
    StructuredOutputValidationError,
    ToolCallError,
    ToolExecutionError,
    ToolTimeoutError,
    UnknownToolError,
    data_converter,
    error_of,
)
from mulligan.errors import RAW_ARGUMENTS_KEPT, RemoteSource
from mulligan.policy import tell

CALL: dict[str, Any] = {"tool_name": "look", "call_id": "1", "raw_arguments": "{"}
ERRORS: list[MulliganError] = [
    InvalidRunInputError("no prompt"),
    ModelRequestError("no such model", status=404, request_id="r1"),
    mulligan.ModelUnavailableError("gone"),
    UnknownToolError("none", kind="unknown_tool", available=["a", "b"], **CALL),
    InvalidToolInputError("bad", kind="invalid_json", source=ValueError("x"), **CALL),
    ToolExecutionError("raised", kind="tool_exception", source=OSError("disk"), **CALL),
    ToolTimeoutError("late", kind="tool_timeout", **CALL),
    StructuredOutputValidationError("not valid", kind="invalid_output", model_message={"a": 1}, tool_name="Answer"),
    MultipleStructuredOutputsError("two", kind="multiple_outputs", model_message="m", tool_names=["A", "B"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_through_temporal_and_back(error: MulliganError) -> None:
    """Its Temporal type is the class's name, it is not tried again, and each field comes back."""
    failure = Failure()
    await data_converter.encode_failure(error, failure)
    assert failure.application_failure_info.type == type(error).__name__
    assert failure.application_failure_info.non_retryable
    cause = await data_converter.decode_failure(failure)
    back = error_of(WorkflowFailureError(cause=cause))
    assert type(back) is type(error)
    assert back is not None
    assert back.message == error.message
    for name in error.fields:
        was, now = getattr(error, name), getattr(back, name)
        if isinstance(was, BaseException):
            assert isinstance(now, RemoteSource)
            was, now = (type(was).__name__, str(was)), (now.type_name, str(now))
        assert now == was


def test_others_errors_are_not_ours() -> None:
    for cause in (CancelledError("cancelled"), ApplicationError("x", type="Theirs"), ValueError("x")):
        assert error_of(WorkflowFailureError(cause=cause)) is None


def test_every_typed_error_is_importable() -> None:
    for error in ERRORS:
        assert getattr(mulligan, type(error).__name__) is type(error)


def test_long_raw_arguments_are_cut() -> None:
    """Temporal refuses failures of megabytes, and a run must not die of that."""
    [details] = ToolCallError("x", kind="invalid_json", raw_arguments="x" * 5_000_000).details
    assert len(details["raw_arguments"]) < RAW_ARGUMENTS_KEPT + 50


def a_validation_error() -> ValidationError:
    try:
        TypeAdapter(int).validate_python("x")
    except ValidationError as error:
        return error
    raise AssertionError


WRONG = InvalidToolInputError("bad", kind="invalid_arguments", source=a_validation_error(), **CALL)


def scold(error: ToolCallError) -> str:
    return f"{error.tool_name}: mind the {error.kind}"


def give_up(error: ToolCallError) -> str:
    raise RuntimeError("enough of this")


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (True, "standard"),
        ("Try harder.", "Try harder."),
        (ValidationError, "standard"),
        (ValueError, "standard"),
        (InvalidToolInputError, "standard"),
        ((OSError, ToolCallError), "standard"),
        (scold, "look: mind the invalid_arguments"),
    ],
)
def test_a_policy_tells(policy: Any, told: str) -> None:
    """Exception types match the typed error and its source."""
    assert tell(WRONG, policy, "standard") == told


@pytest.mark.parametrize(
    ("policy", "reason"), [(False, "bad"), (OSError, "bad"), ((), "bad"), (give_up, "enough of this")]
)
def test_a_policy_fails_the_run(policy: Any, reason: str) -> None:
    """With the typed error; what a callable raises is the reason."""
    with pytest.raises(InvalidToolInputError) as raised:
        tell(WRONG, policy, "standard")
    assert (raised.value.message, raised.value.tool_name) == (reason, "look")
