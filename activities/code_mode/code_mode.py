"""The activity of scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.services import Services
from mulligan.extras import is_installed


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker: none without the extra, which an agent with code mode needs."""
    if not is_installed("code"):
        return []
    from mulligan.activities.code_mode.run_script import RunScriptActivity

    return [RunScriptActivity(services).run_script]
