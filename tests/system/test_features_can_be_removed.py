"""Each feature can be removed: what is left imports, runs, and refuses declarations that need it with a sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mulligan.features import FEATURES

ROOT = Path(__file__).parents[2]
RUNS = """
import asyncio
import mulligan.cli.app, mulligan.doctor, mulligan.serve.app, mulligan.worker.temporal_plugin, mulligan.worker.wiring
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
    "sub_agents": lambda: Agent(name="d", model="openai:m", tools=[helper.as_tool(description="Helps.")]),
    "server_questions": lambda: Agent(name="d", model="openai:m", mcp=[McpServer("web", command=["true"])]),
}
for name, declare in needs.items():
    try:
        declare()
    except DeclarationError as error:
        assert name not in FEATURES and f"needs the feature {name!r}" in str(error), error
    else:
        assert name in FEATURES, name
print(*FEATURES)
"""


def without(name: str, folder: Path) -> Path:
    """A copy of the product without a feature: its folders, its files of that name, its line and its exports."""
    hidden = shutil.ignore_patterns("__pycache__")
    for room in ("workflows", "activities", "tools"):
        shutil.copytree(ROOT / room, folder / room, ignore=hidden)
    shutil.copytree(ROOT / "mulligan", folder / "mulligan", symlinks=True, ignore=hidden)
    parts = [folder / room / name for room in ("workflows", "activities")]
    parts += [folder / "mulligan/features" / f"{name}.py"]
    assert any(part.exists() for part in parts)
    for part in parts:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    names = folder / "mulligan/features/__init__.py"
    names.write_text(_replaced(names.read_text(), f'    "{name}",\n'))
    exports = folder / "mulligan/__init__.py"
    text = exports.read_text()
    for line, exported in re.findall(rf"(from mulligan\.features\.{name} import (\w+)\n)", text):
        text = _replaced(_replaced(text, line), f'    "{exported}",\n')
    exports.write_text(text)
    return folder


def _replaced(text: str, line: str) -> str:
    assert text.count(line) == 1
    return text.replace(line, "")


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_left_without_a_feature_runs(name: str, tmp_path: Path) -> None:
    copy = without(name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", RUNS], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [each for each in FEATURES if each != name]
