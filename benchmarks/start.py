"""The seconds that `import mulligan` and `mulligan --help` take (`start`)."""

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
    "python -c ''": [sys.executable, "-c", ""],
}
"""What is run. `import mulligan` imports almost nothing; a name, such as `Agent`, is imported when it is used first."""


async def measure_start(job: Job, results: Results) -> None:
    """Measure each command in new processes. It runs once before, so that its files are in the system's cache."""
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
