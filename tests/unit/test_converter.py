"""Values as payloads: encoded and decoded like by temporalio's pydantic converter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter

from mulligan import ModelRequestError, data_converter
from mulligan.client.converter import FRAMES, FRAMES_OF_OURS, FailureConverter, PayloadConverter


class Order(BaseModel):
    id: int
    note: str | None = None


@dataclass
class Line:
    text: str


CANNOT_BE_HASHED = Annotated[int, Field(ge=1, json_schema_extra={"a": []}), ["no", "hash"]]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Order(id=7, note="é"), Order),
        ([Order(id=7)], list[Order]),
        (Line("x"), Line),
        ({"a": [1, None, 2.5]}, None),
        ({"a": 1}, dict[str, int]),
        (5, CANNOT_BE_HASHED),
        (None, None),
        (b"bytes", bytes),
    ],
)
async def test_values_are_encoded_like_by_temporals_pydantic_converter(value: Any, hint: Any) -> None:
    """Each decodes what the other has encoded."""
    hints = [hint] if hint is not None else None
    for one, other in ((data_converter, pydantic_data_converter), (pydantic_data_converter, data_converter)):
        written = await one.encode([value])
        assert written == await other.encode([value])
        assert await other.decode(written, hints) == [value]


async def test_a_value_that_does_not_fit_the_type_hint_raises_validation_error() -> None:
    for hint, value in ((Order, {"id": "seven"}), (list[int], ["a"])):
        with pytest.raises(ValidationError):
            await data_converter.decode(await data_converter.encode([value]), [hint])


def test_type_adapters_are_not_shared_between_converters() -> None:
    """Each sandboxed workflow has its own converter: types imported in one sandbox must not stay in another one's cache."""
    first, second = (data_converter.payload_converter_class() for _ in range(2))
    first.from_payloads(first.to_payloads([{"a": 1}]), [dict[str, int]])
    [json_first], [json_second] = (
        [each for each in made.converters.values() if each.encoding == "json/plain"]  # type: ignore[attr-defined]
        for made in (first, second)
    )
    assert json_first._adapters
    assert not json_second._adapters


@pytest.mark.parametrize(
    ("error", "frames"), [(ModelRequestError("refused"), FRAMES_OF_OURS), (ValueError("a bug"), FRAMES)]
)
def test_a_failure_has_the_end_of_the_stack_trace(error: Exception, frames: int) -> None:
    """Each failure of a model, before another one is called, is in history."""

    def fail(depth: int) -> None:
        if depth:
            fail_again(depth)
        raise error

    def fail_again(depth: int) -> None:  # a stack trace does not repeat equal lines, it counts them
        fail(depth - 1)

    failure = Failure()
    with pytest.raises(type(error)) as raised:
        fail(100)
    FailureConverter().to_failure(raised.value, PayloadConverter(), failure)
    assert failure.stack_trace.count("File ") == frames
    assert failure.stack_trace.rstrip().endswith("raise error")


def test_converters_share_the_parts_that_keep_nothing() -> None:
    """The SDK creates two for each workflow task."""
    first, second = PayloadConverter(), PayloadConverter()
    assert list(first.converters) == list(second.converters)
    own = [name for name, part in first.converters.items() if second.converters[name] is not part]
    assert own == [b"json/plain"]
