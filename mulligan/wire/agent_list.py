"""`MulliganAgents`: the short workflow with which a client asks which agents the workers of a task queue serve."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mulligan.wire.checked_result import CheckedResult

AGENTS_WORKFLOW = "MulliganAgents"
"""Temporal's workflow type."""
LIST_AGENTS = "list_agents"
"""Temporal's activity type."""


class AgentList(CheckedResult):
    """The agents of a worker, each as `mulligan agents --json` prints it. Without tools and schemas if they are too many."""

    agents: list[dict[str, Any]]
    queues: list[str] = Field(default_factory=list)
    """The task queues of the workers of the same queue that serve other agents."""

    def fault(self) -> str | None:
        """Each agent has a name."""
        return None if all(isinstance(each.get("name"), str) for each in self.agents) else "an agent has no name"
