"""How values become payloads: JSON as pydantic writes and reads it."""

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


class _Json(EncodingPayloadConverter):
    """What temporalio.contrib.pydantic does. The SDK makes a new converter at each workflow task, so this one is made of
    nothing: a serializer and a cache of type adapters each time were a twentieth of a worker's work.
    """

    def __init__(self) -> None:
        # Its own, not the process's: types that a sandbox imported must go when their run does.
        self._adapters: dict[Any, TypeAdapter[Any]] = {}

    @property
    def encoding(self) -> str:
        """JSON, as every SDK reads it."""
        return _ENCODING

    def to_payload(self, value: Any) -> Payload | None:
        """Write a value."""
        return Payload(metadata={"encoding": _ENCODING.encode()}, data=to_json(value))

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Read a value.

        Raises:
            pydantic.ValidationError: it is not what the hint says.
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


class PayloadConverter(CompositePayloadConverter):
    """The SDK's own converters, with pydantic's JSON for plain JSON."""

    def __init__(self) -> None:
        others = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*(_Json() if isinstance(each, JSONPlainPayloadConverter) else each for each in others))


data_converter = DataConverter(payload_converter_class=PayloadConverter)
"""Temporal's data converter for Mulligan's values, and whatever else pydantic can write."""
