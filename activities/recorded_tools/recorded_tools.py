"""The activities of recorded tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.recorded_tools.find_record import FindRecordActivity
from mulligan.activities.services import Services


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return [FindRecordActivity(services).find_record]
