"""The commands in the docstrings of `examples`, as a person types them; docs/examples.md lists every example."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import uuid
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from mulligan.devserver import DevServer
from tests.support.command_fixtures import Run, command
from tests.support.command_server import start_command
from tests.support.temporal import connect_to

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs/examples.md").read_text()
DECIDES = {"approve", "answer"}
"""Commands that need a call that waits."""


def commands_of(name: str) -> list[list[str]]:
    """The commands after the last line that starts a worker, with that line."""
    text = (EXAMPLES / f"{name}.py").read_text()
    lines = re.findall(r"^ *(uv run (?:mulligan|python -m examples\.\w+ \S).*)$", text.split('"""')[1], re.MULTILINE)
    start = max(number for number, line in enumerate(lines) if " worker " in line)
    return [shlex.split(line) for line in lines[start:]]


def test_the_page_lists_each_example_and_nothing_else() -> None:
    """With the command of its docstring. A server for another example is started by that one."""
    files = {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__", "notes_server"}
    assert set(re.findall(r"`uv run (?:mulligan worker --load|python -m) examples\.(\w+)[ `]", PAGE)) == files
    for name in files - {"chat", "openai_client"}:
        assert commands_of(name)[0] == ["uv", "run", "mulligan", "worker", "--load", f"examples.{name}"]
    assert all((EXAMPLES / path).exists() for path in re.findall(r"`examples/(\w+)`", PAGE))


@pytest.mark.parametrize(
    ("name", "run", "says"),
    [
        ("refund_desk", "letter-8", "have paid 250 euros back"),
        ("research_team", "herons", "Published 'The herons': grey: 260000 pairs, rising"),
        ("nightly_report", None, "reports/"),
        ("analyst", "less", "Ada: 600 euros less (66 %)"),
        ("coding_agent", "fix", "the tests pass. It is committed."),
        ("buyer", "lamps", "Ordered: 10 lamps, green, for 240 euros."),
        ("librarian", "notes", "Deleted: old prices."),
        ("storyteller", "story", "That was all."),
    ],
)
async def test_the_commands_of_an_example_do_what_it_says(
    environment: dict[str, str],
    mulligan: Run,
    temporal: DevServer,
    tmp_path: Path,
    name: str,
    run: str | None,
    says: str,
) -> None:
    """In their order; those of a person as soon as a call waits. Without `uv run`, which the test below has."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    settings = {"MULLIGAN_TASK_QUEUE": queue, "MULLIGAN_WORKSPACE": str(tmp_path)}
    [worker, *others] = commands_of(name)
    serving = await start_command(*worker[3:], env=environment | settings, stderr=PIPE)
    assert serving.stderr is not None
    printed = ""
    try:
        assert b"Serving" in await serving.stderr.readline()
        for words in others:
            if words[2] == "python":
                ran = await command(sys.executable, *words[3:], env=environment | settings)
            else:
                if words[3] in DECIDES:
                    await until_waiting(temporal, words[4])
                confirmed = ["--yes"] if words[3] == "approve" else []  # there is no terminal
                ran = await mulligan(*words[3:], *confirmed, **settings)
            assert ran.code == 0, (words, ran.out, ran.err)
            printed += ran.out
        if run is not None:
            handle: Any = (await connect_to(temporal)).get_workflow_handle(run)
            await handle.result()
            printed += (await mulligan("show", run, **settings)).out
    finally:
        serving.terminate()
        await serving.communicate()
    assert says in printed


async def until_waiting(temporal: DevServer, run: str) -> None:
    """Wait until a call of a run waits for a person."""
    handle: Any = (await connect_to(temporal)).get_workflow_handle(run)
    while not await handle.query("pending"):
        await asyncio.sleep(0.05)


async def test_the_slack_channel_is_served_by_its_command(environment: dict[str, str]) -> None:
    settings = {"SLACK_SIGNING_SECRET": "s", "SLACK_WEBHOOK_URL": "http://127.0.0.1:9/", "PORT": "0"}
    serving = await asyncio.create_subprocess_exec(
        "uv", "run", "--no-sync", "python", "-m", "examples.slack_channel", cwd=ROOT, env=environment | settings, stderr=PIPE
    )  # fmt: skip
    assert serving.stderr is not None
    try:
        while b"Uvicorn running on http://127.0.0.1:" not in (line := await serving.stderr.readline()):
            assert line
    finally:
        serving.terminate()
        await serving.communicate()
