"""The workflow that ends what a cancelled run has started elsewhere: the run does not wait for it."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from mulligan.schema.optional_field import optional_field

CLEAN_UP = "MulliganCleanUp"
"""Temporal's workflow type."""


class CleanUp(BaseModel):
    """Input of the workflow: one activity of the run's table, and its input as JSON.

    `queue`: a task queue of its own; None: a worker of the workflow's queue must serve the agent.
    """

    activity: str
    request: JsonValue
    queue: str | None = optional_field()
    summary: str
