"""The typed errors: through a Temporal failure and back, as JSON, and with policies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState

import mulligan
from mulligan import (
    Consumption,
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
    Usage,
    data_converter,
    error_of,
)
from mulligan.errors import MAX_FIELD_CHARS, RemoteSource, from_json
from mulligan.policy import text_for_model

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


@pytest.mark.parametrize(
    "consumption", [None, Consumption(steps=2, usage=Usage(input_tokens=7), cost=0.5)], ids=["", "of a run"]
)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_typed_error_keeps_its_type_and_fields_through_temporal(
    error: MulliganError, consumption: Consumption | None
) -> None:
    """The type of the Temporal failure is the name of the class, and it is not retryable."""
    failure, error.consumption = Failure(), consumption
    await data_converter.encode_failure(error, failure)
    assert failure.application_failure_info.type == type(error).__name__
    assert failure.application_failure_info.non_retryable
    cause = await data_converter.decode_failure(failure)
    back = error_of(WorkflowFailureError(cause=cause))
    assert type(back) is type(error)
    assert back is not None
    assert (back.message, back.consumption) == (error.message, consumption)
    for name in error.fields:
        was, now = getattr(error, name), getattr(back, name)
        if isinstance(was, BaseException):
            assert isinstance(now, RemoteSource)
            was, now = (type(was).__name__, str(was)), (now.type_name, str(now))
        assert now == was


def test_error_of_ends_where_an_exception_is_its_own_cause() -> None:
    error = ValueError("x")
    error.__cause__ = KeyError("y")
    error.__cause__.__cause__ = error
    assert error_of(error) is None


def test_error_of_returns_none_for_errors_of_others() -> None:
    for cause in (CancelledError("cancelled"), ApplicationError("x", type="Theirs"), ValueError("x")):
        assert error_of(WorkflowFailureError(cause=cause)) is None


def test_every_typed_error_is_importable() -> None:
    for error in ERRORS:
        assert getattr(mulligan, type(error).__name__) is type(error)


def test_long_raw_arguments_are_cut() -> None:
    """Temporal refuses failures of megabytes."""
    [details] = ToolCallError("x", kind="invalid_json", raw_arguments="x" * 5_000_000).details
    assert len(details["raw_arguments"]) < MAX_FIELD_CHARS + 50


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
def test_a_policy_returns_its_text_for_the_type_of_the_error_or_its_source(policy: Any, told: str) -> None:
    """Exception types of a policy match the typed error and its source."""
    assert text_for_model(WRONG, policy, "standard") == told


@pytest.mark.parametrize(
    ("policy", "reason"), [(False, "bad"), (OSError, "bad"), ((), "bad"), (give_up, "enough of this")]
)
def test_a_policy_that_returns_no_text_raises_the_typed_error(policy: Any, reason: str) -> None:
    """The exception of a callable is the reason."""
    with pytest.raises(InvalidToolInputError) as raised:
        text_for_model(WRONG, policy, "standard")
    assert (raised.value.message, raised.value.tool_name) == (reason, "look")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_written_as_json_is_read_back_equal(error: MulliganError) -> None:
    """Fields added by a later version are ignored."""
    data = json.loads(json.dumps(error.to_json()))
    back = from_json({**data, "fields": {**data["fields"], "added_later": 1}})
    assert type(back) is type(error)
    assert back.to_json() == error.to_json()
    assert (back.message, back.type, back.non_retryable) == (error.message, type(error).__name__, True)


@pytest.mark.parametrize("data", [{}, {"type": "Later", "message": "m"}, {"type": "MulliganError", "message": "m"}])
def test_json_of_an_unknown_error_type_is_read_as_mulligan_error(data: dict[str, Any]) -> None:
    back = from_json(data)
    assert (type(back), back.message) == (MulliganError, data.get("message", ""))


def activity_failed(cause: BaseException) -> ActivityError:
    state = RetryState.NON_RETRYABLE_FAILURE
    failed = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="t",
        activity_id="1",
        retry_state=state,
    )
    failed.__cause__ = cause
    return failed


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_error_of_finds_the_error_behind_activity_and_workflow_failures(error: MulliganError) -> None:
    """Also if a workflow passed it on from a child workflow or an activity."""
    failure = Failure()
    await data_converter.encode_failure(activity_failed(error), failure)
    cause = await data_converter.decode_failure(failure)
    assert isinstance(cause, ActivityError)
    for seen in (cause, WorkflowFailureError(cause=cause), activity_failed(error)):
        found = error_of(seen)
        assert found is not None
        assert found.to_json() == error.to_json()


def test_error_of_returns_a_raised_error_itself() -> None:
    assert [error_of(error) for error in ERRORS] == ERRORS


def test_error_of_finds_the_cause_of_another_error() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = ERRORS[0]
    assert error_of(outer) is ERRORS[0]


@pytest.mark.parametrize(
    "details", [(), ({},), ("text",), ({"consumption": 7},)], ids=["none", "empty", "other", "consumption"]
)
@pytest.mark.parametrize("name", ["ToolTimeoutError", "MultipleStructuredOutputsError"])
def test_a_failure_without_details_is_read_by_its_type(name: str, details: tuple[Any, ...]) -> None:
    """As from a worker in another language."""
    found = error_of(ApplicationError("late", *details, type=name))
    assert type(found).__name__ == name
    assert found is not None
    assert (found.message, found.consumption) == ("late", None)


def test_a_long_source_is_cut_in_the_error() -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(list[int]).validate_python(["x"] * 30_000)
    error = InvalidToolInputError("bad", kind="invalid_arguments", source=raised.value, **CALL)
    assert len(json.dumps(error.to_json())) < 3 * MAX_FIELD_CHARS


def test_a_long_model_message_is_cut_in_the_error() -> None:
    error = StructuredOutputValidationError("bad", kind="invalid_output", model_message={"text": "x" * 5_000_000})
    assert len(json.dumps(error.to_json())) < 3 * MAX_FIELD_CHARS


def test_lone_surrogates_in_an_error_are_replaced() -> None:
    """They cannot be encoded as UTF-8."""
    error = ToolExecutionError("\ud800", kind="tool_exception", source=ValueError("\udfff"))
    assert error.message == "\ufffd"
    assert json.dumps(error.to_json(), ensure_ascii=False).encode()


def test_the_type_of_an_error_subclass_is_its_class_name() -> None:
    class Mine(ToolExecutionError):
        """A user's own."""

    assert (Mine("x", kind="denied").type, Mine("x", kind="denied").to_json()["type"]) == ("Mine", "Mine")
