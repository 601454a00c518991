"""The commands as a user runs them: as processes, with one real server and one worker."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mulligan.devserver import DevServer
from tests.support.command_server import PIPE, CommandProcess, run_command, start_command
from tests.support.temporal import environment_of

ROOT = Path(__file__).parent.parent.parent
QUEUE = "acceptance"


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Awaitable[Outcome]]


async def command(*words: str, env: dict[str, str], cwd: Path = ROOT, stdin: str = "") -> Outcome:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *words, env=env, cwd=cwd,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="session")
def environment(temporal: DevServer) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_", "MULLIGAN_"))}
    return kept | environment_of(temporal) | {"MULLIGAN_TASK_QUEUE": QUEUE}


@pytest.fixture(scope="session")
def mulligan(environment: dict[str, str]) -> Run:
    """`mulligan …`, forked from a process that has imported it."""

    async def run(*words: str, stdin: str = "", cwd: Path = ROOT, **env: str) -> Outcome:
        code, out, err = await run_command(*words, env=environment | env, cwd=cwd, given=stdin.encode())
        return Outcome(code, out.decode(), err.decode())

    return run


@pytest.fixture(scope="session")
def installed_mulligan(environment: dict[str, str]) -> Run:
    """`mulligan …`, the program that users start."""
    program = str(Path(sys.executable).parent / "mulligan")

    async def run(*words: str, stdin: str = "", **env: str) -> Outcome:
        return await command(program, *words, env=environment | env, stdin=stdin)

    return run


@pytest.fixture(scope="session")
async def worker(environment: dict[str, str]) -> AsyncIterator[CommandProcess]:
    """`mulligan worker --load tests.acceptance.support_agent`. At the end it gets SIGTERM, drains, and exits with 0."""
    process = await start_command(
        *("worker", "--load", "tests.acceptance.support_agent", "--load", "examples.research_team"),
        env=environment, stderr=PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    first = (await process.stderr.readline()).decode()
    assert "Serving editor, researcher, slow, support, translator on task queue 'acceptance'" in first
    yield process
    process.terminate()
    said = (await process.stderr.read()).decode()
    assert await process.wait() == 0
    assert "Draining" in said
