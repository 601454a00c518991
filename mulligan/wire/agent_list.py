"""The question which agents the workers of a task queue serve: a short workflow, as only a worker knows."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

__all__ = ["AGENTS_WORKFLOW", "LIST_AGENTS", "AgentList"]

AGENTS_WORKFLOW = "MulliganAgents"
"""Temporal's workflow type."""
LIST_AGENTS = "list_agents"
"""Temporal's activity type."""


class AgentList(BaseModel):
    """The agents of a worker, each as `mulligan agents --json` prints it. Without tools and schemas if they are too many."""

    agents: list[dict[str, Any]]
    queues: list[str] = []
    """The task queues of the workers of the same queue that serve other agents."""
