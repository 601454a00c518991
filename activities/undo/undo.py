"""The activities of undos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.services import Services
from mulligan.activities.undo.undo_activities import UndoActivities


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    undo = UndoActivities(services)
    return [undo.plan_undo, undo.undo_call]
