"""Tests of agents: a scripted model, runs without a server, and (`mulligan.testing.plugin`) on an embedded server."""

from mulligan.testing.model import Model, when_told
from mulligan.testing.run import AgentRun, SpanSeen, run_agent, run_workflow

__all__ = ["AgentRun", "Model", "SpanSeen", "run_agent", "run_workflow", "when_told"]
