"""The activity of sub-agents' calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.services import Services
from mulligan.activities.sub_agents.record_sub_run import RecordSubRunActivity


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return [RecordSubRunActivity(services).record_sub_run]
