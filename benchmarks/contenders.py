"""The contenders: the floors, Mulligan in its variants, and the rivals."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.passage import prompt

ROOT = Path(__file__).parent.parent
RIVALS = Path(__file__).parent / "rivals"


@dataclass(frozen=True)
class WorkerKind:
    """A kind of worker process. ONE process of each kind runs, for all contenders that it serves."""

    name: str
    command: Callable[[str], list[str]]
    """The command, by task queue. The environment has TEMPORAL_ADDRESS, OPENAI_BASE_URL and OPENAI_API_KEY."""
    replay: Callable[[Path, int], list[str]]
    """The command that replays a history, by its file and the number of repeats."""
    environment: dict[str, str] = field(default_factory=dict)
    project: Path | None = None
    """The folder of its pyproject.toml; None: it runs in Mulligan's environment."""
    packages: tuple[str, ...] = ()
    """The distributions of a rival whose versions the page names."""


@dataclass(frozen=True)
class Contender:
    """Something to measure: a worker, and the way to start a run on it."""

    name: str
    title: str
    worker: WorkerKind
    workflow: str
    arguments: Callable[[int, str, bool], list[Any]]
    """The arguments of the workflow, by the number of steps, the run's short name, and whether it stays open after them."""
    colour: str = "#888888"
    message: Callable[[int, str, bool], Any] | None = None
    """By the same three, of a session whose workflow takes no prompt: its one message. The session is closed after it."""


def _ours(kind: str, model: str | None = None) -> Callable[[int, str, bool], list[Any]]:
    def arguments(steps: int, run: str, hold: bool) -> list[Any]:
        given = {"agent": kind, "prompt": prompt(steps, run, hold=hold)}
        return [given | ({"model": model} if model else {})]

    return arguments


def _rivals(steps: int, run: str, hold: bool) -> list[Any]:
    return [prompt(steps, run, hold=hold)]


def _message(steps: int, run: str, hold: bool) -> dict[str, Any]:
    return {"type": "ask", "payload": {"text": prompt(steps, run, hold=hold)}}


def _floors(steps: int, run: str, hold: bool) -> list[Any]:
    return [{"steps": steps, "hold": hold, "prompt": prompt(steps, run, hold=hold)}]


def _module(python: Path | str, name: str) -> dict[str, Any]:
    return {
        "command": lambda queue: [str(python), "-m", name, "--queue", queue],
        "replay": lambda file, times: [str(python), "-m", name, "--replay", str(file), "--times", str(times)],
    }


def _rival(folder: str, packages: tuple[str, ...], environment: dict[str, str] | None = None) -> WorkerKind:
    project = RIVALS / folder
    python = project / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    serving = _module(python, f"benchmarks.rivals.{folder}.worker")
    return WorkerKind(folder, **serving, environment=environment or {}, project=project, packages=packages)


_FLOOR = WorkerKind("floor", **_module(sys.executable, "benchmarks.floor"))
_MULLIGAN = WorkerKind(
    "mulligan",
    command=lambda queue: [sys.executable, "worker.py", "--load", "benchmarks.agents", "--task-queue", queue],
    replay=lambda file, times: [sys.executable, "-m", "benchmarks.replayed", str(file), str(times)],
)
_OPENAI_AGENTS = _rival(
    "openai_agents",
    ("openai-agents", "temporalio-openai-agents", "temporalio", "openai"),
    {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
)
_PYDANTIC_AI = _rival("pydantic_ai", ("pydantic-ai-slim", "temporalio", "openai"))
_STRANDS = _rival("strands", ("strands-agents", "temporalio-strands-agents", "temporalio", "openai"))
_LANGGRAPH = _rival("langgraph", ("langgraph", "temporalio-langgraph", "langchain-openai", "temporalio", "openai"))
_AGENT_HARNESS = _rival(
    "agent_harness",
    ("temporal-agent-harness", "openai-agents", "temporalio", "openai"),
    {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
)

ALL: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("floor", "floor: two activities that do nothing", _FLOOR, "Floor", _floors, "#8a8f98"),
        Contender("floor-http", "floor with the HTTP request", _FLOOR, "FloorWithHttp", _floors, "#5f6670"),
        Contender("mulligan", "Mulligan", _MULLIGAN, "AgentWorkflow", _ours("bench"), "#1f9e77"),
        Contender(
            "mulligan-scripted",
            "Mulligan, model in process",
            _MULLIGAN,
            "AgentWorkflow",
            _ours("bench", "scripted:bench"),
            "#57b894",
        ),
        Contender(
            "mulligan-local", "Mulligan, local tool", _MULLIGAN, "AgentWorkflow", _ours("bench-local"), "#3d8f9e"
        ),
        Contender(
            "mulligan-scripted-local",
            "Mulligan, model in process, local tool",
            _MULLIGAN,
            "AgentWorkflow",
            _ours("bench-local", "scripted:bench"),
            "#6fb0bd",
        ),
        Contender("openai-agents", "OpenAI Agents SDK", _OPENAI_AGENTS, "BenchWorkflow", _rivals, "#d95f02"),
        Contender("pydantic-ai", "pydantic-ai", _PYDANTIC_AI, "BenchWorkflow", _rivals, "#c2478f"),
        Contender(
            "pydantic-ai-continued",
            "pydantic-ai with `continue_as_new`",
            _PYDANTIC_AI,
            "ContinuedWorkflow",
            lambda steps, run, hold: [prompt(steps, run, hold=hold), []],
            "#d98cbc",
        ),
        Contender("strands", "Strands Agents", _STRANDS, "BenchWorkflow", _rivals, "#7570b3"),
        Contender("langgraph", "LangGraph", _LANGGRAPH, "BenchWorkflow", _rivals, "#2f7ed8"),
        Contender(
            "agent-harness",
            "Temporal's agent harness",
            _AGENT_HARNESS,
            "BenchWorkflow",
            lambda *_: [{}],
            "#b58900",
            _message,
        ),
    )
}
RIVAL_NAMES = ("openai-agents", "pydantic-ai", "strands", "langgraph", "agent-harness")


def kinds(names: Sequence[str]) -> list[WorkerKind]:
    """The different kinds of worker that serve these contenders."""
    return list({ALL[name].worker.name: ALL[name].worker for name in names}.values())
