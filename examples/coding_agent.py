"""`coder`: an agent that finds a bug in a small project, fixes it, and commits when a person has approved.

It reads and writes files of one folder (`MULLIGAN_WORKSPACE`), runs the project's tests as often as it likes, and any other
command only after a person has seen it. Tests and commands run in processes of their own, which end with the call, without
the worker's secrets. That is no sandbox: run the worker of such an agent in a container (docs/isolated-tools.md).
Its model is scripted, so it runs without a key; put `openai:gpt-5-mini` in its place. It needs git.

    uv run mulligan worker --load examples.coding_agent
    uv run mulligan start coder "Three lamps cost a cent too little. Fix it." --id fix
    uv run mulligan pending fix
    uv run mulligan approve fix
    uv run mulligan show fix
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mulligan import Agent, Call, Message, Say, Script, ToolError, last_result, tool
from mulligan.tools import list_files, read_file, search_files, write_file

PROJECT = {
    "till.py": "def total(cents: int, pieces: int, percent_off: int) -> int:\n"
    "    return cents * (100 - percent_off) // 100 * pieces\n",
    "test_till.py": "import unittest\n\nfrom till import total\n\n\nclass TestTotal(unittest.TestCase):\n"
    "    def test_the_discount_is_taken_from_the_sum(self):\n"
    "        self.assertEqual(total(cents=1995, pieces=3, percent_off=10), 5386)\n",
}


def _folder() -> Path:
    return Path(os.environ.get("MULLIGAN_WORKSPACE") or "workspace", "till").absolute()


@asynccontextmanager
async def resources() -> AsyncIterator[None]:
    """Make the project of the example, where the workspace has none; a worker enters it once."""
    if not _folder().exists():
        _folder().mkdir(parents=True)
        for name, text in PROJECT.items():
            (_folder() / name).write_text(text)
    yield


def _run(command: str | list[str], seconds: float) -> str:
    try:
        ran = subprocess.run(  # noqa: S603 - the tests, or what a person has approved
            command, shell=isinstance(command, str), cwd=_folder(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"It did not end within {seconds:g} seconds, and was ended.") from error
    return f"{ran.stdout[-10_000:]}\nexit code {ran.returncode}"


@tool(isolated=True, timeout=130)
def run_tests() -> str:
    """Run the tests of the project in the folder `till`."""
    return _run([sys.executable, "-m", "unittest", "-q"], 120)


@tool(isolated=True, timeout=130, needs_approval=True, approval_timeout=24 * 3600)
def run_command(command: str) -> str:
    """Run a shell command in the folder `till`, after a person has approved it.

    Args:
        command: The command, for example: git diff.
    """
    return _run(command, 120)


coder = Agent(
    name="coder",
    model="scripted:coder",
    instructions=(
        "You fix bugs in the project in the folder `till`. See the tests fail, read the code, change as little as "
        "possible, see the tests pass, then commit. If you need another command, say in your text why."
    ),
    tools=[list_files, read_file, search_files, write_file, run_tests, run_command],
    max_steps=30,
)

FIXED = PROJECT["till.py"].replace(
    "cents * (100 - percent_off) // 100 * pieces", "cents * pieces * (100 - percent_off) // 100"
)
COMMIT = (
    "git init -q && git add till.py test_till.py && "
    "git -c user.name=coder -c user.email=coder@localhost commit -qm 'Take the discount from the sum'"
)


def _tells(messages: Sequence[Message]) -> Say:
    is_committed = "exit code 0" in last_result(messages)
    return Say("The discount is now taken from the sum; the tests pass." + " It is committed." * is_committed)


script = Script(
    "coder",
    [
        Say("Let me see it fail.", [Call("run_tests"), Call("list_files", {"path": "till"})]),
        Say(calls=[Call("read_file", {"path": "till/till.py"})]),
        Say(calls=[Call("write_file", {"path": "till/till.py", "content": FIXED, "mode": "overwrite"})]),
        Say(calls=[Call("run_tests")]),
        Say("The tests pass, so I commit.", [Call("run_command", {"command": COMMIT})]),
        _tells,
    ],
)
