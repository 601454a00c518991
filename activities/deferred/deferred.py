"""The activities of deferred calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.deferred.settle_deferred import SettleDeferredActivities
from mulligan.activities.services import Services


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    deferred = SettleDeferredActivities(services)
    return [deferred.settle_deferred, deferred.cancel_deferred]
