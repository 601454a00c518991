"""`CallsInText`: calls that a model writes in its text are run as calls."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.features.agent_feature import AgentFeature


@dataclass(frozen=True, kw_only=True)
class CallsInText(AgentFeature, in_files=True):
    """For models without tool calls of their own: the instructions describe the tools, and calls in the text are run."""
