"""One seed: runs on supervised worker processes, one of which is killed again and again at random moments."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from mulligan.devserver import DevServer
from tests.chaos.ledger_agents import LEDGER
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.otlp_receiver import OtlpReceiver, Span
from tests.support.ports import free_ports
from tests.support.processes import children_of
from tests.support.temporal import connect_to, environment_of

ROOT = Path(__file__).parents[2]
TOOLS = ("pay", "fetch", "flaky", "refuse", "look", "nothing")
SECONDS_FOR_RUNS = 120.0


@dataclass(frozen=True)
class Plan:
    """What a seed does."""

    seed: int
    processes: int = 2
    runs: int = 4
    steps: int = 8
    kills: int = 8
    pause: tuple[float, float] = (0.1, 1.5)
    """The least and the most seconds between two kills."""


@dataclass(frozen=True)
class Kill:
    """A process that was killed."""

    at: float
    pid: int


@dataclass
class Outcome:
    """What happened."""

    plan: Plan
    kills: list[Kill] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By workflow id; no entry for a run that did not end."""
    steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    model_calls: list[tuple[float, str, int]] = field(default_factory=list)
    """When, of which run, for which step (from 0)."""
    broken_model_calls: list[tuple[float, str]] = field(default_factory=list)
    """When the model saw that its caller was gone, and of which run."""
    requests: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The last conversation that the model saw."""
    spans: list[Span] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)


async def run_seed(plan: Plan, server: DevServer, folder: Path) -> Outcome:
    """Run it; returns what happened, which `faults.py` judges."""
    outcome, queue, chance = Outcome(plan), f"chaos-{plan.seed}", random.Random(plan.seed)
    ledger = folder / f"ledger-{plan.seed}"
    ledger.touch()
    async with OpenAIServer() as model, OtlpReceiver() as otlp:
        model.script("chaos", _script(plan, outcome))
        client = await connect_to(server)
        [port] = free_ports(1)
        health = f"127.0.0.1:{port}"
        environment = {
            **os.environ,
            **environment_of(server),
            **model.environment(),
            **otlp.environment("http/protobuf"),
            "OTEL_METRICS_EXPORTER": "none",
            LEDGER: str(ledger),
            "MULLIGAN_GRACE_SECONDS": "5",
            "MULLIGAN_HEALTH_ADDRESS": health,
        }
        async with _supervisor(plan, queue, environment) as supervisor:
            handles = [await _start(client, plan, number, queue) for number in range(plan.runs)]
            watching = asyncio.create_task(_watch_callers(model, outcome))
            killing = asyncio.create_task(_kill_children(supervisor.pid, health, chance, outcome))
            await asyncio.wait([asyncio.create_task(_end(handle, outcome)) for handle in handles])
            killing.cancel()
            watching.cancel()
            for handle in handles:
                if handle.id in outcome.results:
                    outcome.steps[handle.id] = (await handle.query("steps"))["steps"]
                    outcome.messages[handle.id] = (await handle.query("messages"))["messages"]
                outcome.history[handle.id] = [event async for event in handle.fetch_history_events()]
        outcome.spans = otlp.spans()
        for request in model.requests:
            outcome.requests[request.prompt] = request.conversation
    outcome.ledger = [json.loads(line) for line in ledger.read_text().splitlines()]
    return outcome


def _script(plan: Plan, outcome: Outcome) -> Any:
    def turn(request: dict[str, Any], nth: int) -> Turn:
        prompt = next(str(each["content"]) for each in request["messages"] if each["role"] == "user")
        outcome.model_calls.append((time.time(), prompt, nth))
        chance = random.Random(f"{plan.seed} {prompt} {nth}")
        if nth >= plan.steps:
            return Turn("done", delay=chance.uniform(0, 0.2))
        names = chance.sample(TOOLS, chance.choice((1, 1, 1, 2)))
        calls = [
            (name, json.dumps({"milliseconds": chance.randint(0, 600)}), f"c{nth}_{number}")
            for number, name in enumerate(names)
        ]
        return Turn(calls=calls, delay=chance.uniform(0, 0.6))

    return turn


async def _watch_callers(model: OpenAIServer, outcome: Outcome) -> None:
    """Note when the caller of a request was gone before it had the answer."""
    seen = 0
    while True:
        gone = [request for request in model.requests if request.disconnected]
        outcome.broken_model_calls += [(time.time(), request.prompt) for request in gone[seen:]]
        seen = len(gone)
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _supervisor(plan: Plan, queue: str, environment: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", "tests.chaos.ledger_agents", "--task-queue", queue,
        "--processes", str(plan.processes), cwd=ROOT, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    while b"Supervising" not in (line := await process.stderr.readline()):
        assert line, "the supervisor has ended"
    draining = asyncio.create_task(process.stderr.read())
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        await draining


async def _start(client: Client, plan: Plan, number: int, queue: str) -> WorkflowHandle[Any, Any]:
    name = f"chaos-{plan.seed}-{number}"
    handle: WorkflowHandle[Any, Any] = await client.start_workflow(
        "AgentWorkflow", {"agent": "ledger", "prompt": name}, id=name, task_queue=queue
    )
    return handle


async def _end(handle: WorkflowHandle[Any, Any], outcome: Outcome) -> None:
    try:
        outcome.results[handle.id] = await asyncio.wait_for(handle.result(), SECONDS_FOR_RUNS)
    except TimeoutError:
        return
    except Exception as error:  # whatever it is, it is a fault of this seed
        outcome.results[handle.id] = {"status": f"{type(error).__name__}: {error} {error.__cause__!r}"}


async def _until_ready(address: str) -> None:
    """Wait until all processes of the supervisor serve."""
    async with httpx2.AsyncClient() as client:
        while (await client.get(f"http://{address}/readyz")).status_code != 200:
            await asyncio.sleep(0.1)


async def _kill_children(supervisor: int, health: str, chance: random.Random, outcome: Outcome) -> None:
    plan = outcome.plan
    for _ in range(plan.kills):
        await asyncio.sleep(chance.uniform(*plan.pause))
        await _until_ready(health)
        pid = chance.choice(children_of(supervisor, "--processes"))
        os.kill(pid, signal.SIGKILL)
        outcome.kills.append(Kill(time.time(), pid))


def failed_workflow_tasks(history: list[Any]) -> list[tuple[float, float | None]]:
    """For each workflow task that was failed or timed out: when, and when the run scheduled the next thing, if it did."""
    ended = (
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    )
    found = []
    for number, event in enumerate(history):
        if event.event_type in ended:
            later = (
                each for each in history[number:] if each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
            )
            following = next(later, None)
            at = event.event_time.ToNanoseconds() / 1e9
            found.append((at, following.event_time.ToNanoseconds() / 1e9 if following else None))
    return found
