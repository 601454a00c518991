"""How long a program waits until it can use Mulligan (`start`): its import, and `mulligan --help`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from benchmarks.contenders import ROOT
from benchmarks.results import Job, Results

COMMANDS = {
    "import mulligan": [sys.executable, "-c", "import mulligan"],
    "from mulligan import Agent, tool": [sys.executable, "-c", "from mulligan import Agent, tool"],
    "mulligan --help": [str(Path(sys.executable).with_name("mulligan")), "--help"],
    "an empty program": [sys.executable, "-c", ""],
}
"""What is run. Names of `mulligan` are imported at their first use: the two are those of each agent."""


async def measure_start(job: Job, results: Results) -> None:
    """Measure each command in new processes, after one that has filled the system's cache of files."""
    for command in COMMANDS.values():
        await _seconds(command)
    for repeat in results.missing(job):
        results.add(job, repeat, seconds={name: await _seconds(command) for name, command in COMMANDS.items()})


async def _seconds(command: list[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MULLIGAN_"))}
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return round(time.perf_counter() - began, 4)
