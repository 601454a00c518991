"""`finish_run`: the end of a run's trace."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.schema.optional_field import optional_field
from mulligan.values import Usage
from mulligan.wire.run_context import RunContext

FINISH_RUN = "finish_run"
"""Temporal's activity type."""


class TurnEnd(BaseModel):
    """How a run, or a turn of it, ended. `cost` is in USD."""

    turn: int
    status: str
    steps: int
    recovered_failures: int
    usage: Usage
    cost: float | None = optional_field()
    error_type: str | None = optional_field()


class FinishRun(TurnEnd):
    """Input of `finish_run`."""

    where: RunContext
