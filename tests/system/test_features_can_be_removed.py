"""Each feature can be removed: what is left imports, runs, and refuses declarations that need it with a sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mulligan.features import FEATURES

ROOT = Path(__file__).parents[2]
RUNS = """
import asyncio
import mulligan.client.follow_events, mulligan.client.wait_reader, mulligan.ended_runs.replay, mulligan.trace_view.history_spans
import mulligan.cli.app, mulligan.doctor, mulligan.serve.create_app, mulligan.worker.temporal_plugin, mulligan.worker.wiring
from pydantic import BaseModel
from mulligan import Agent, Call, DeclarationError, McpServer, Say, tool
from mulligan.features import FEATURES
from mulligan.testing import ScriptedModel, run_agent

@tool
def add(a: int, b: int) -> int:
    '''Add.'''
    return a + b

class Sum(BaseModel):
    value: int

async def run() -> None:
    plain = await run_agent(Agent(name="a", model="openai:m"), "Hi", model=ScriptedModel(Say("Hello.")))
    assert plain.output == "Hello."
    calls = [Call("add", "{'a': 1, 'b': 2,}"), Call("subtract", {"a": 1})]
    called = await run_agent(Agent(name="b", model="openai:m", tools=[add]), "Add", model=ScriptedModel(Say(calls=calls), "3"))
    assert called.output == "3"
    errors = [call.result.error for call in called.calls]
    assert [error and error.kind for error in errors] == [None, "unknown_tool"]
    said = [Say(calls=[Call("Sum", {"value": value})]) for value in ("x", 3)]
    typed = await run_agent(Agent(name="c", model="openai:m", output=Sum), "Add", model=ScriptedModel(*said))
    assert typed.output in (Sum(value=3), {"value": 3})

asyncio.run(run())
helper = Agent(name="helper", model="openai:m")
needs = {
    "fallback": lambda: Agent(name="d", model=["openai:m", "openai:n"]),
    "approvals": lambda: Agent(name="d", model="openai:m", tools=[tool(needs_approval=True)(add.function)]),
    "deferred": lambda: Agent(name="d", model="openai:m", tools=[tool(deferred=True)(add.function)]),
    "once": lambda: Agent(name="d", model="openai:m", tools=[tool(once=True)(add.function)]),
    "undo": lambda: Agent(name="d", model="openai:m", tools=[tool(undo=lambda arguments, result, ctx: None)(add.function)]),
    "tool_search": lambda: Agent(name="d", model="openai:m", tools=[tool(on_demand=True)(add.function)]),
    "sub_agents": lambda: Agent(name="d", model="openai:m", tools=[helper.as_tool(description="Helps.")]),
    "handoffs": lambda: Agent(name="d", model="openai:m", handoffs=[helper]),
    "server_questions": lambda: Agent(name="d", model="openai:m", mcp=[McpServer("web", command=["true"])]),
}
for name, declare in needs.items():
    try:
        declare()
    except DeclarationError as error:
        assert name not in FEATURES and f"needs the feature {name!r}" in str(error), error
    else:
        assert name in FEATURES, name
commands = [each.name or each.callback.__name__ for each in mulligan.cli.app.app.registered_commands]
paths = [protocol.prefix for protocol in mulligan.serve.create_app.PROTOCOLS]
own = {
    "deferred": ("complete", "/api/callbacks"),
    "budgets": ("budget",),
    "background": ("/api/webhooks",),
    "undo": ("undo", "/api/runs"),
    "experiments": ("whatif", "experiments"),
}
for name, entrances in own.items():
    assert [each in (*commands, *paths) for each in entrances] == [name in FEATURES] * len(entrances), entrances
print(*FEATURES)
"""


def without(names: Sequence[str], folder: Path) -> Path:
    """A copy of the product without some features: their folders and files, their lines and their exports."""
    hidden = shutil.ignore_patterns("__pycache__")
    for room in ("workflows", "activities", "tools"):
        shutil.copytree(ROOT / room, folder / room, ignore=hidden)
    shutil.copytree(ROOT / "mulligan", folder / "mulligan", symlinks=True, ignore=hidden)
    for name in names:
        _remove(name, folder)
    return folder


def _remove(name: str, folder: Path) -> None:
    rooms = [
        folder / "workflows",
        folder / "activities",
        *(each for each in (folder / "mulligan").iterdir() if each.is_dir()),
    ]
    parts = [
        part for room in rooms for part in (room / name, room / f"{name}.py") if part.exists() and not room.is_symlink()
    ]
    assert parts
    for part in parts:
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    listed = folder / "mulligan/features/__init__.py"
    listed.write_text(_replaced(listed.read_text(), f'    "{name}",\n'))
    exports = folder / "mulligan/__init__.py"
    text = exports.read_text()
    for line, exported in re.findall(rf"(from mulligan\.features\.{name} import ([\w, ]+)\n)", text):
        text = _replaced(text, line)
        for each in exported.split(", "):
            text = _replaced(text, f'    "{each}",\n')
    exports.write_text(text)


def _replaced(text: str, line: str) -> str:
    assert text.count(line) == 1
    return text.replace(line, "")


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_left_without_a_feature_runs(name: str, tmp_path: Path) -> None:
    copy = without([name], tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", RUNS], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [each for each in FEATURES if each != name]
