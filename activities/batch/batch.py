"""The activities of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.batch.batch_call_activities import BatchCallActivities
from mulligan.activities.batch.submit_batch import SubmitBatchActivities
from mulligan.activities.services import Services


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return [*BatchCallActivities(services).all, *SubmitBatchActivities(services).all]
