"""Each feature can be removed: what is left imports, runs, and refuses declarations that need it with a sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mulligan.features import FEATURES

ROOT = Path(__file__).parents[2]
RUNS = """
import asyncio
import mulligan.client.follow_events, mulligan.client.wait_reader, mulligan.ended_runs.replay, mulligan.trace_view.run_trace
import mulligan.cli.app, mulligan.doctor, mulligan.serve.create_app, mulligan.worker.temporal_plugin, mulligan.worker.wiring
from pydantic import BaseModel
from mulligan import Agent, Call, DeclarationError, McpServer, Say, Tool, tool
from mulligan.features import FEATURES, TOOL_OPTIONS
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
    "guarded": lambda: Agent(name="d", model="openai:m", tools=[tool(consequential=True)(add.function)]),
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
labelled = tool(trust="untrusted")(add.function)
assert Agent(name="e", model="openai:m", tools=[labelled]).tool("add").trust == "untrusted"
values = {"deferred": True, "undo": lambda arguments, result, ctx: None, "on_demand": True}
for keyword, name in TOOL_OPTIONS.items():
    if name is not None and name not in FEATURES:
        value = values.get(keyword, True)
        for declare in (
            lambda: tool(**{keyword: value})(add.function),
            lambda: Tool.from_schema(name="t", description="T.", schema={"type": "object"}, call=print, **{keyword: value}),
        ):
            try:
                Agent(name="f", model="openai:m", tools=[declare()])
            except DeclarationError as error:
                assert f"with {keyword} needs the feature {name!r}, which is not installed" in str(error), error
            else:
                raise AssertionError(keyword)
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
    [row] = re.findall(rf'^    FeatureParts\("{name}", .*\),\n', listed.read_text(), re.MULTILINE)
    listed.write_text(_replaced(listed.read_text(), row))
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


FORKS = """
import importlib.machinery, os, pathlib, sys
import anthropic, fastapi, google.genai, mcp, openai, pydantic, rich, temporalio.testing, temporalio.worker, typer, uvicorn
assert not [name for name in sys.modules if name.partition(".")[0] == "mulligan"]
program, root = sys.argv[1:]
compiled = {}
for room in ("mulligan", "workflows", "activities", "tools"):
    for path in pathlib.Path(root, room).rglob("*.py"):
        data = path.read_bytes()
        compiled[data] = compile(data, path, "exec", dont_inherit=True)
compiles = importlib.machinery.SourceFileLoader.source_to_code
importlib.machinery.SourceFileLoader.source_to_code = (
    lambda self, data, path, **options: compiled.get(bytes(data)) or compiles(self, data, path, **options)
)
for line in sys.stdin:
    copy = line.strip()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{copy}/out", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(f"{copy}/err", os.O_WRONLY | os.O_CREAT), 2)
        os.chdir(copy)
        sys.path.insert(0, copy)
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Runs a program in each copy whose folder it reads, and prints its exit code: in forks of a process that has imported and compiled what is the same for all of them."""


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", FORKS, RUNS, ROOT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        yield process


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_left_without_a_feature_runs(name: str, forks: subprocess.Popen[str], tmp_path: Path) -> None:
    copy = without([name], tmp_path)
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(f"{copy}\n")
    forks.stdin.flush()
    assert forks.stdout.readline() == "0\n", (copy / "err").read_text()
    assert (copy / "out").read_text().split() == [each for each in FEATURES if each != name]
