"""Finds the text that a model is writing in the details of a heartbeat, which any program may have sent."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from mulligan.wire.event_types import LIVE_TEXT, LiveText


def live_text_in(details: Iterable[Any]) -> LiveText | None:
    """The text in the details of a heartbeat; None if there is none, or another program has written it."""
    for detail in details:
        if isinstance(detail, dict) and LIVE_TEXT in detail:
            with suppress(ValidationError):
                return LiveText.model_validate(detail[LIVE_TEXT])
    return None
