"""The options of tools whose calls wait for a person, and `Approvals`: an agent's defaults for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from mulligan.durations import is_duration, seconds
from mulligan.features.agent_feature import AgentFeature
from mulligan.features.tool_option import ToolOption, Traits, is_role

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool

SHORTEST_REMINDER = 1.0
"""The least seconds before a reminder."""
Time = float | timedelta | None
"""Seconds, or a timedelta; None: none."""


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
        return _faults_of_times("Approvals: ", self.timeout, self.reminder)


@dataclass(frozen=True, kw_only=True)
class ApprovalsOption(ToolOption):
    """Whether a person is asked about a call, or asked for its result; and the times of that wait."""

    needs_approval: bool | str | Callable[..., Any] = False
    approval_timeout: float | timedelta | None = None
    approval_reminder: float | timedelta | None = None
    asks_person: bool = False

    def faults(self, tool: Tool) -> dict[str, bool]:
        """Check the values: a mistyped one would mean that nobody is asked; and refuse two questions about one call."""
        needs = self.needs_approval
        return {
            (
                "needs_approval must be True, False, the name of a role, or a function of (arguments, ToolContext), but is "
                f"{needs!r}"
            ): not (isinstance(needs, bool) or callable(needs) or (isinstance(needs, str) and is_role(needs))),
            **_faults_of_times("approval_", self.approval_timeout, self.approval_reminder),
            "asks_person and needs_approval exclude each other: its call waits for a person anyway": bool(
                self.asks_person and needs
            ),
        }

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """The times that are set, here or for the agent, where calls of `tool` may wait for a person."""
        if not (tool.asks or tool.traits.asks_first):
            return None
        default = agent.feature(Approvals) or Approvals()
        timeout = default.timeout if self.approval_timeout is None else self.approval_timeout
        reminder = default.reminder if self.approval_reminder is None else self.approval_reminder
        given = {"timeout": timeout, "reminder": reminder}
        times: dict[str, JsonValue] = {name: seconds(time) for name, time in given.items() if time is not None}
        return times or None

    @property
    def traits(self) -> Traits:
        """Who is asked before a call, and whether it is a question."""
        return Traits(policy=self.needs_approval, is_question=self.asks_person)


def _faults_of_times(where: str, timeout: Time, reminder: Time) -> dict[str, bool]:
    return {
        f"{where}timeout must be more than 0 seconds, or None, but is {timeout!r}": timeout is not None
        and not is_duration(timeout),
        f"{where}reminder must be 1 second or more, or None, but is {reminder!r}": reminder is not None
        and not is_duration(reminder, least=SHORTEST_REMINDER),
    }
