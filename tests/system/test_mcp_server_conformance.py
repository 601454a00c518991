"""The MCP conformance suite's server scenarios, against `/mcp`; those of the extension for tasks too."""

from __future__ import annotations

import pytest

from mulligan.devserver import DevServer
from tests.support.expected_failures import check_failures
from tests.support.mcp_conformance_server import run_scenarios


@pytest.fixture(scope="module")
async def passed(temporal: DevServer) -> dict[str, bool]:
    """Whether each scenario passed."""
    return await run_scenarios(temporal)


@pytest.mark.parametrize("part", ["server", "tasks"])
def test_all_scenarios_pass_but_those_with_a_reason(passed: dict[str, bool], part: str) -> None:
    names = [name for name in passed if name.startswith("tasks-") == (part == "tasks")]
    check_failures(
        "mcp_server", part, [name for name in names if not passed[name]], [name for name in names if passed[name]]
    )
