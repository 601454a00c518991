"""The MCP conformance suite's scenarios of the extension for tasks, against `/mcp`."""

from __future__ import annotations

from mulligan.devserver import DevServer
from tests.support.expected_failures import check_failures
from tests.support.mcp_conformance_server import run_scenarios


async def test_all_scenarios_pass_but_those_with_a_reason(temporal: DevServer) -> None:
    failed, passed = await run_scenarios(temporal, "tasks")
    check_failures("mcp_server", "tasks", failed, passed)
