"""`Approvals`: the defaults for the calls of an agent's tools that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from mulligan.durations import as_timedelta, seconds
from mulligan.features.agent_feature import AgentFeature
from mulligan.tool import SHORTEST_REMINDER

if TYPE_CHECKING:
    from mulligan.agent import Agent


@dataclass(frozen=True, kw_only=True)
class Approvals(AgentFeature, in_files=True):
    """How calls wait for a person, where their tool does not say it itself (docs/people.md).

    Args:
        timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`. None: never.
        reminder: Seconds, or a timedelta, after which a call that still waits for a person is reported by the event
            `reminder`, and again at intervals that double, ten times at most. None: never.
    """

    timeout: float | timedelta | None = None
    reminder: float | timedelta | None = None

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check that the times are possible. `agent`: whose feature it is."""
        return {
            f"Approvals: timeout must be more than 0 seconds, or None, but is {self.timeout!r}": (
                self.timeout is not None and as_timedelta(self.timeout) <= timedelta(0)
            ),
            f"Approvals: reminder must be 1 second or more, or None, but is {self.reminder!r}": (
                self.reminder is not None and as_timedelta(self.reminder) < SHORTEST_REMINDER
            ),
        }

    def tool_defaults(self) -> Mapping[str, float | None]:
        """The times for tools that have none of their own."""
        return {
            "approval_timeout": None if self.timeout is None else seconds(self.timeout),
            "approval_reminder": None if self.reminder is None else seconds(self.reminder),
        }
