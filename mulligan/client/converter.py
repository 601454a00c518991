"""The data converter: values become payloads as JSON that pydantic writes and reads."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
)

_ENCODING = "json/plain"
REFUSED = b"binary/mulligan-refused"
"""The encoding of what a codec (encryption.py) puts in the place of a payload that it refuses; the data says why."""
RETRY = "mulligan-retry"
"""In the metadata of such a payload, where a worker with other keys may be able to decrypt it."""


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
        """Encode a value."""
        return Payload(metadata={"encoding": _ENCODING.encode()}, data=to_json(value))

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


class _Refused(EncodingPayloadConverter):
    """Raises an error for payloads that the codec has refused."""

    @property
    def encoding(self) -> str:
        """The encoding of such payloads."""
        return REFUSED.decode()

    def to_payload(self, value: Any) -> Payload | None:
        """It encodes nothing."""
        del value
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Refuse the payload.

        Raises:
            ValueError: always, with the codec's reason.
        """
        del type_hint
        raise ValueError(payload.data.decode())


class PayloadConverter(CompositePayloadConverter):
    """The SDK's own converters, with pydantic's JSON for plain JSON."""

    def __init__(self) -> None:
        others = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(
            *(_Json() if isinstance(each, JSONPlainPayloadConverter) else each for each in others), _Refused()
        )


data_converter = DataConverter(payload_converter_class=PayloadConverter)
"""Temporal's data converter for Mulligan's values, and for all other types that pydantic can serialize."""
