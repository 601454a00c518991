"""The data converter: values become payloads as JSON that pydantic writes and reads, and exceptions become failures.

Both are well-formed text, whatever they are made of: a result or a failure that the SDK cannot encode would be a failed
attempt, and the work would be done again.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import nexusrpc
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
)
from temporalio.converter import PayloadConverter as AnyPayloadConverter
from temporalio.exceptions import ApplicationError, FailureError

from mulligan.errors import MulliganError, truncated
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.well_formed import well_formed

_ENCODING = "json/plain"
REFUSED = b"binary/mulligan-refused"
"""The encoding of what stands in the place of a payload that cannot be read (`refused`); the data says why."""
FRAMES, FRAMES_OF_OURS = 20, 2
"""Of stack traces in history: of our own errors, whose messages say what is wrong, fewer."""
RETRY = "mulligan-retry"
"""In the metadata of such a payload, where another worker, or this one later, may be able to read it."""


def refused(reason: str, *, retry: bytes = b"") -> Payload:
    """The payload that replaces an unreadable payload. No converter accepts it.

    Args:
        reason: Why it cannot be read: sentences for people.
        retry: The value of `RETRY` in its metadata; empty: nobody will be able to read it.
    """
    return Payload(metadata={"encoding": REFUSED, **({RETRY: retry} if retry else {})}, data=reason.encode())


class _Json(EncodingPayloadConverter):
    """Does what temporalio.contrib.pydantic does, but costs nothing to create: the SDK creates a converter for each workflow
    task, and the serializer and cache of the contrib one took 5 % of a worker's CPU time.
    """

    def __init__(self) -> None:
        # One cache for each converter, not for the process: types that a sandbox imported must be freed with their run.
        self._adapters: dict[Any, TypeAdapter[Any]] = {}

    @property
    def encoding(self) -> str:
        """The encoding: plain JSON, which every SDK reads."""
        return _ENCODING

    def to_payload(self, value: Any) -> Payload | None:
        """Encode a value. Lone surrogates in it become U+FFFD."""
        try:
            data = to_json(value)
        except PydanticSerializationError:
            data = str(well_formed(json.dumps(value, ensure_ascii=False, default=_plain))).encode()
        return Payload(metadata={"encoding": _ENCODING.encode()}, data=data)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Decode a value.

        Raises:
            pydantic.ValidationError: the value does not have the type of the hint.
        """
        if isinstance(type_hint, type) and issubclass(type_hint, BaseModel):
            return type_hint.model_validate_json(payload.data)
        hint = Any if type_hint is None else type_hint
        try:
            adapter = self._adapters.get(hint)
        except TypeError:  # a hint that cannot be hashed
            return TypeAdapter(hint).validate_json(payload.data)
        if adapter is None:
            adapter = self._adapters[hint] = TypeAdapter(hint)
        return adapter.validate_json(payload.data)


def _plain(value: Any) -> Any:
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else to_jsonable_python(value)


class _Refused(EncodingPayloadConverter):
    """Raises an error for payloads that the codec has refused."""

    @property
    def encoding(self) -> str:
        """The encoding of such payloads."""
        return REFUSED.decode()

    def to_payload(self, value: Any) -> Payload | None:
        """Encode nothing: only the codec makes such payloads."""
        del value
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Refuse the payload.

        Raises:
            ValueError: always, with the codec's reason.
        """
        del type_hint
        raise ValueError(payload.data.decode())


_PARTS = CompositePayloadConverter(*DefaultPayloadConverter.default_encoding_payload_converters, _Refused()).converters
"""By their encodings, in the order in which the SDK asks them."""


class PayloadConverter(CompositePayloadConverter):
    """The SDK's own converters, with pydantic's JSON for plain JSON."""

    def __init__(self) -> None:
        # The SDK creates two for each workflow task. All of them share the parts that keep nothing.
        self.converters = {**_PARTS, _ENCODING.encode(): _Json()}


class FailureConverter(DefaultFailureConverter):
    """The SDK's converter, for any exception's text: messages are well-formed, other libraries' messages are cut, and so
    are stack traces, which the worker's log has whole.
    """

    def to_failure(self, exception: BaseException, payload_converter: AnyPayloadConverter, failure: Failure) -> None:
        """Write an exception and its causes as a failure."""
        if not isinstance(exception, FailureError | nexusrpc.HandlerError):
            written = ApplicationError(truncated(error_text(exception)), type=type_name(exception))
            written.__cause__ = exception.__cause__
            exception = written.with_traceback(_end_of(exception.__traceback__, FRAMES))
        elif isinstance(exception, ApplicationError):
            frames = FRAMES_OF_OURS if isinstance(exception, MulliganError) else FRAMES
            exception = _well_formed_error(exception)
            exception.__traceback__ = _end_of(exception.__traceback__, frames)
        super().to_failure(exception, payload_converter, failure)


def _well_formed_error(error: ApplicationError) -> ApplicationError:
    """The error, or one of the same fields whose message can be written; protobuf writes no half of a surrogate pair."""
    message = str(well_formed(str(error.message)))
    if message == error.message:
        return error
    written = ApplicationError(
        message,
        *error.details,
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )
    written.__cause__, written.__context__ = error.__cause__, error.__context__
    written.__suppress_context__ = error.__suppress_context__
    return written.with_traceback(error.__traceback__)


def _end_of(trace: TracebackType | None, frames: int) -> TracebackType | None:
    """The last frames of a traceback, where the error was raised."""
    last = trace
    for _ in range(frames):
        last = last and last.tb_next
    while trace is not None and last is not None:
        trace, last = trace.tb_next, last.tb_next
    return trace


class EncodedFailureConverter(FailureConverter):
    """A `FailureConverter` that writes messages and stack traces into a payload, which a codec encrypts."""

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)


data_converter = DataConverter(payload_converter_class=PayloadConverter, failure_converter_class=FailureConverter)
"""Temporal's data converter for Mulligan's values, and for all other types that pydantic can serialize."""
