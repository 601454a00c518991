"""Reads a payload that any program may have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter


def read_payloads(
    converter: PayloadConverter, payloads: Sequence[Payload], types: list[type] | None = None
) -> list[Any]:
    """The values of payloads.

    Raises:
        ValueError: one cannot be read, or has another type. The message does not quote it.
    """
    try:
        return converter.from_payloads(payloads, types)
    except ValidationError as error:
        [first, *_] = error.errors(include_input=False, include_url=False, include_context=False)
        where = ".".join(map(str, first["loc"]))[:200]
        raise ValueError(f"{first['msg'][:200]}{f' at {where}' if where else ''}") from None
    except Exception as error:  # noqa: BLE001 - converters raise what they like, and no code of the project runs here
        raise ValueError(f"{type(error).__name__}: {str(error)[:500]}") from None
