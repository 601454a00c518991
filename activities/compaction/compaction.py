"""The activity of compactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.compaction.compact_conversation import CompactConversationActivity
from mulligan.activities.services import Services


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return [CompactConversationActivity(services).compact_conversation]
