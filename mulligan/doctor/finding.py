"""`Finding`: what one check found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]
"""`warning`: runs work, but something is missing or odd. `problem`: runs, or what was configured, do not work."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `text` is one sentence without secrets; it says what to do unless the state is `ok`."""

    check: str
    state: State
    text: str
