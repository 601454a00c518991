"""Decodes what an activity in a history was given, or has returned: its only argument, or its result."""

from __future__ import annotations

from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.converter import DataConverter


class UnreadableError(ValueError):
    """A payload of the history cannot be decoded here, most often because it is encrypted."""


async def first_payload(converter: DataConverter, payloads: Payloads) -> Any:
    """The first payload as JSON; None if there is none.

    Raises:
        UnreadableError: it cannot be decoded.
    """
    if not payloads.payloads:
        return None
    try:
        [value] = await converter.decode(payloads.payloads[:1])
    except Exception as error:
        raise UnreadableError(str(error)) from error
    return value
