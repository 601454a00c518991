"""The MCP conformance suite's server scenarios, against `/mcp`."""

from __future__ import annotations

import pytest

from mulligan.devserver import DevServer
from tests.support.mcp_conformance_server import check_scenarios


@pytest.mark.timeout(300)
async def test_all_scenarios_pass_but_those_with_a_reason(temporal: DevServer) -> None:
    await check_scenarios(temporal, "server")
