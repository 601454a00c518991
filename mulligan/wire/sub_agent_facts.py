"""What is pinned of a tool that is an agent."""

from __future__ import annotations

from pydantic import BaseModel, Field

__all__ = ["SubAgentFacts"]


class SubAgentFacts(BaseModel):
    """How the workflow schedules the runs of a sub-agent; nothing of it is there for other tools.

    `agent`: whose run each call is. `max_depth`: how many levels of sub-agents may be below the calling agent.
    `share_budget`: whether a run gets what is left of the calling run's budget; `max_total_tokens` and `max_cost` (USD) are
    then the sub-agent's own limits, which hold as well.
    """

    agent: str | None = Field(default=None, exclude_if=lambda value: value is None)
    max_depth: int | None = Field(default=None, exclude_if=lambda value: value is None)
    share_budget: bool = Field(default=False, exclude_if=lambda value: value is False)
    max_total_tokens: int | None = Field(default=None, exclude_if=lambda value: value is None)
    max_cost: float | None = Field(default=None, exclude_if=lambda value: value is None)
