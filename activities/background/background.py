"""The activities of background responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.background.read_response import BackgroundResponseActivities
from mulligan.activities.services import Services


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return BackgroundResponseActivities(services).all
