"""The typed errors, and their conversion to a Temporal failure and back.

Each is an `ApplicationError` that Temporal does not retry, and its Temporal `type` is the class's name: raised in a
workflow it fails the run, and any client can read its type and fields from the failure. `error_of` reads them back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ValidationError
from temporalio.exceptions import ApplicationError, FailureError

from mulligan.schema.cut_text import cut_text
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.well_formed import well_formed
from mulligan.values import Consumption

MAX_FIELD_CHARS = 32_768
"""Characters of a field in a failure, such as the raw arguments: Temporal refuses failures of more than a few hundred KB."""


class DeclarationError(Exception):
    """A tool or an agent was declared in a way that cannot work. The message names the file, the thing and the fault."""


class RemoteSource(Exception):
    """The source of an error that was raised in another process. Only its type's name and its text were transferred."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class MulliganError(ApplicationError):
    """The base class of every error of Mulligan.

    Attributes:
        consumption: What the failed run used; None where no run began.
        detail: What follows the message in the feedback for the model. It may quote the input; empty for most errors.
        quotes_input: Whether `detail` quotes all that the model wrote, or the part at fault. Other processes do not get it.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that are transferred to other processes, in the failure's first detail."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        self.detail = str(well_formed(detail))
        self.quotes_input = False
        self.consumption: Consumption | None = None
        super().__init__(str(well_formed(message)), type=type(self).__name__, non_retryable=True)

    @property
    def text(self) -> str:
        """The standard feedback for the model: the message, which never quotes the input, then `detail`, which may."""
        return f"{self.message}\n{self.detail}" if self.detail else self.message

    @property
    def details(self) -> Sequence[Any]:
        """The fields and `consumption` as one JSON object, for clients in other languages."""
        fields = self._as_fields()
        if self.consumption is not None:
            fields["consumption"] = self.consumption.model_dump(mode="json")
        return [fields] if fields else []

    def to_json(self) -> dict[str, Any]:
        """The error as data, for activity results; `from_json` reads it."""
        return {"type": type(self).__name__, "message": truncated(self.message), "fields": self._as_fields()}

    def _as_fields(self) -> dict[str, Any]:
        return {name: _as_json(getattr(self, name)) for name in self.fields}


class InvalidRunInputError(MulliganError):
    """A run was started with an invalid input. The message says what to change."""


class ModelRequestError(MulliganError):
    """The provider refused the request (with a 4xx status that a retry cannot change).

    Attributes:
        status: The HTTP status; None where the provider's SDK raised without one.
        request_id: The provider's id of the request, for its support; None where it sent none.
        is_overflow: Whether it was refused as too long for the model.
    """

    fields = ("status", "request_id", "is_overflow")

    def __init__(
        self, message: str, *, status: int | None = None, request_id: str | None = None, is_overflow: bool = False
    ) -> None:
        self.status = status
        self.request_id = request_id
        self.is_overflow = is_overflow
        super().__init__(truncated(message))

    def _as_fields(self) -> dict[str, Any]:
        fields = super()._as_fields()
        return fields if self.is_overflow else {name: fields[name] for name in fields if name != "is_overflow"}


class ModelUnavailableError(MulliganError):
    """The model's endpoint was down, or limited our rate, for longer than `model_patience` or `model_attempts`."""


class InvalidActivityResultError(MulliganError):
    """A worker of another version, or another program, has completed an activity with a result that the run cannot use."""


class ToolCallError(MulliganError):
    """A tool call failed. `message` never quotes the input; `detail`, which the model gets as well, may.

    Attributes:
        kind: Such as `tool_timeout`; docs/recovery.md shows each.
        tool_name: The name that the model called.
        call_id: The id of the call.
        raw_arguments: The arguments as the model wrote them, cut to 32,768 characters in a failure.
        source: The exception behind it (a `pydantic.ValidationError`, the tool's own); None where there is none.
    """

    fields: ClassVar[tuple[str, ...]] = ("kind", "tool_name", "call_id", "raw_arguments", "source")

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        tool_name: str = "",
        call_id: str = "",
        raw_arguments: str = "",
        source: BaseException | None = None,
        detail: str = "",
    ) -> None:
        self.kind = kind
        self.tool_name = tool_name
        self.call_id = call_id
        self.raw_arguments = raw_arguments
        self.source = source
        super().__init__(message, detail=detail)


class UnknownToolError(ToolCallError):
    """The model called a tool that does not exist.

    Attributes:
        available: The names of the tools that it may call.
    """

    fields = (*ToolCallError.fields, "available")

    def __init__(self, message: str, *, available: Sequence[str] = (), **fields: Any) -> None:
        self.available = list(available)
        super().__init__(message, **fields)


class InvalidToolInputError(ToolCallError):
    """A call's arguments could not be parsed, or are not valid by the tool's schema."""


class ToolExecutionError(ToolCallError):
    """The tool failed, returned a value that is not JSON, or was not allowed to run."""


class ToolTimeoutError(ToolCallError):
    """The tool, or its worker, did not answer in time."""


class StructuredOutputError(MulliganError):
    """The model's answer is not the structured output that the agent declares.

    Attributes:
        kind: `invalid_output`, `multiple_outputs`, `missing_output` or `premature_output`.
        model_message: The answer, as the JSON of an `AssistantMessage`. (`message` is the failure's own sentence.)
    """

    fields: ClassVar[tuple[str, ...]] = ("kind", "model_message")

    def __init__(self, message: str, *, kind: str = "", model_message: Any = None, detail: str = "") -> None:
        self.kind = kind
        self.model_message = model_message
        super().__init__(message, detail=detail)


class StructuredOutputValidationError(StructuredOutputError):
    """The output is not valid, is missing, or was given together with ordinary calls.

    Attributes:
        tool_name: The name of the output type; empty where the model gave none.
        source: The `pydantic.ValidationError`; None where there was nothing to validate.
    """

    fields = (*StructuredOutputError.fields, "tool_name", "source")

    def __init__(
        self, message: str, *, tool_name: str = "", source: BaseException | None = None, **fields: Any
    ) -> None:
        self.tool_name = tool_name
        self.source = source
        super().__init__(message, **fields)


class MultipleStructuredOutputsError(StructuredOutputError):
    """The model gave several outputs instead of one.

    Attributes:
        tool_names: The names of the output types that it gave, in its order.
    """

    fields = (*StructuredOutputError.fields, "tool_names")

    def __init__(self, message: str, *, tool_names: Sequence[str] = (), **fields: Any) -> None:
        self.tool_names = list(tool_names)
        super().__init__(message, **fields)


class UpdateRefusedError(MulliganError):
    """A run refused an update: a message, decision, answer or result. The message says why, and what to do.

    Attributes:
        ended_by: What has ended the wait of the call, as the end of a sentence; "" where the run does not know such a call
            any more. None: the update was refused for another reason.
        role: The role that is needed to decide on the call, and that whoever has decided does not have.
        agent: The agent for which whoever has decided may make no rule of the tenant.
    """

    fields = ("ended_by", "role", "agent")

    def __init__(
        self, message: str, *, ended_by: str | None = None, role: str | None = None, agent: str | None = None
    ) -> None:
        self.ended_by, self.role, self.agent = ended_by, role, agent
        super().__init__(message)

    def _as_fields(self) -> dict[str, Any]:
        return {name: value for name, value in super()._as_fields().items() if value is not None}


_BY_NAME: dict[str, type[MulliganError]] = {
    error.__name__: error
    for error in (
        InvalidRunInputError,
        ModelRequestError,
        ModelUnavailableError,
        InvalidActivityResultError,
        UnknownToolError,
        InvalidToolInputError,
        ToolExecutionError,
        ToolTimeoutError,
        StructuredOutputValidationError,
        MultipleStructuredOutputsError,
        UpdateRefusedError,
    )
}


def from_json(data: dict[str, Any]) -> MulliganError:
    """The error that `MulliganError.to_json` wrote. Fields that this version does not know are left out."""
    message = _text(data.get("message"))
    kind = _BY_NAME.get(_text(data.get("type")))
    if kind is None:
        return MulliganError(message)
    given = data.get("fields")
    fields: dict[str, Any] = given if isinstance(given, dict) else {}
    error = kind(message, **{name: _field(name, fields[name]) for name in kind.fields if name in fields})
    error.detail = _text(data.get("detail"))
    return error


def _field(name: str, value: Any) -> Any:
    """A field of an error, of the type that it must have: other code may have written it."""
    if name == "source":
        given = value if isinstance(value, dict) else {}
        return RemoteSource(_text(given.get("type")), _text(given.get("message"))) if given else None
    if name in ("available", "tool_names"):
        return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    if name == "status":
        return value if isinstance(value, int) else None
    if name == "is_overflow":
        return value is True
    if name in ("request_id", "ended_by"):
        return value if isinstance(value, str) else None
    return value if name == "model_message" else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def error_of(failure: BaseException) -> MulliganError | None:
    """The typed error behind a Temporal failure, with its fields.

    Args:
        failure: A `WorkflowFailureError`, an `ActivityError`, or any other exception.

    Returns:
        The error; None for any other failure: a cancellation, a termination, a user's own error.
    """
    seen: BaseException | None = failure
    before: set[int] = set()
    while seen is not None and id(seen) not in before:  # an exception may be its own cause
        before.add(id(seen))
        if isinstance(seen, MulliganError):
            return seen
        if isinstance(seen, ApplicationError) and seen.type in _BY_NAME:
            fields = seen.details[0] if seen.details and isinstance(seen.details[0], dict) else {}
            error = from_json({"type": seen.type, "message": seen.message, "fields": fields})
            error.consumption = _usage_until_failure(fields.get("consumption"))
            return error
        seen = seen.cause if isinstance(seen, FailureError) else getattr(seen, "cause", None) or seen.__cause__
    return None


def _usage_until_failure(given: Any) -> Consumption | None:
    try:
        return Consumption.model_validate(given)
    except ValidationError:  # a failure of other code
        return None


def _as_json(value: Any) -> Any:
    if isinstance(value, RemoteSource):
        return {"type": value.type_name, "message": truncated(str(value))}
    if isinstance(value, BaseException):
        return {"type": type_name(value), "message": truncated(error_text(value))}
    if isinstance(value, str):
        return truncated(value)
    if isinstance(value, (dict, list)) and len(text := json.dumps(value, default=str)) > MAX_FIELD_CHARS:
        return truncated(text)
    return value


def truncated(text: str) -> str:
    """A well-formed text cut to `MAX_FIELD_CHARS`, with a note of how much was cut."""
    return cut_text(str(well_formed(text)), MAX_FIELD_CHARS)
