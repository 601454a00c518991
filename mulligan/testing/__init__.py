"""Tests of agents: a scripted model, runs without a server, and (`mulligan.testing.plugin`) on an embedded server."""

from typing import TYPE_CHECKING, Any

from mulligan.testing.model import ScriptedModel, when_told
from mulligan.testing.run import AgentRun, SpanSeen, run_agent, run_workflow
from mulligan.wire.case import Case, CaseError

if TYPE_CHECKING:
    from mulligan.testing.provider_suite import FakeAnswer, FakeEndpoint, ProviderSuite
    from mulligan.testing.replay_case import load_case, replay

__all__ = [
    "AgentRun",
    "Case",
    "CaseError",
    "FakeAnswer",
    "FakeEndpoint",
    "ProviderSuite",
    "ScriptedModel",
    "SpanSeen",
    "load_case",
    "replay",
    "run_agent",
    "run_workflow",
    "when_told",
]


def __getattr__(name: str) -> Any:
    if name in ("FakeAnswer", "FakeEndpoint", "ProviderSuite"):  # they import pytest, which run_agent does not need
        from mulligan.testing import provider_suite

        return getattr(provider_suite, name)
    if name in ("load_case", "replay"):
        from mulligan.testing.replay_case import load_case, replay

        return load_case if name == "load_case" else replay
    raise AttributeError(f"module 'mulligan.testing' has no attribute {name!r}")
