"""The MCP conformance suite's client scenarios, against our session."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.mcp_conformance import installed, listed_scenarios
from tests.support.mcp_conformance_forks import client_command

FAILURES: dict[str, str] = json.loads(Path(__file__).with_name("mcp_conformance_failures.json").read_text())
"""The scenarios that fail, each with the reason. One that passes unexpectedly fails this test too."""
FEWEST = 48
"""Scenarios of this version of the suite."""


@pytest.mark.timeout(1800)
async def test_all_client_scenarios_of_the_mcp_conformance_suite_pass_but_those_with_a_reason() -> None:
    program, environment = installed()
    scenarios = listed_scenarios(program, environment, "client")
    assert len(scenarios) >= FEWEST
    at_once = asyncio.Semaphore(4)

    async def run(scenario: str, command: str) -> tuple[str, str]:
        async with at_once:
            process = await asyncio.create_subprocess_exec(
                program, "client", "--command", command, "--scenario", scenario, "--timeout", "300000",
                env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            return scenario, "" if process.returncode == 0 else output.decode()[-3_000:]

    async with client_command() as command:
        results = dict(await asyncio.gather(*(run(scenario, command) for scenario in scenarios)))
    failed = {scenario: output for scenario, output in results.items() if output}
    unexpected = {scenario: output for scenario, output in failed.items() if scenario not in FAILURES}
    assert unexpected == {}
    assert set(FAILURES) - set(failed) == set(), "these pass now: remove them from mcp_conformance_failures.json"
