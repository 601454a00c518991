"""Plays tasks: the databases, the model's endpoint, a Temporal server and workers are processes, and all but the first are killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from benchmarks.stage import Process, running
from tests.chaos.compare import RIVALS, Rival, all_poll, kept_processes
from tests.chaos.injected import Faults
from tests.chaos.plan import Outcome, Plan
from tests.chaos.report import ROOT
from tests.chaos.seed import RestartedServer, Workers, end_of, in_background
from tests.exam.asked_database import FACTS, URL, ask
from tests.exam.plan import MULLIGAN, ODDS, Sitting, Victim
from tests.exam.run_names import run_name
from tests.support.ports import free_ports
from tests.support.tau2_environment import tau2_python
from tests.support.temporal import connect_to, environment_of

Note = Callable[[dict[str, Any]], None]
LONGEST_STATUS = 200
_LOST_KINDS = ("tool_lost", "tool_timeout")


@dataclass
class DatabasesProcess:
    """The process with the databases of a domain. `facts`: what they are."""

    url: str
    ledger: Path
    facts_file: Path
    facts: dict[str, Any]


@asynccontextmanager
async def databases(domain: str, folder: Path) -> AsyncIterator[DatabasesProcess]:
    """Run the databases of a domain while the block runs."""
    [port] = free_ports(1)
    url, ledger, file = f"http://127.0.0.1:{port}", folder / "ledger", folder / "facts.json"
    ledger.touch()
    command: list[str | Path] = [await tau2_python(), "-m", "tests.exam.databases", domain, str(port), ledger]
    async with running("databases", command, {**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        await _serving(process)
        facts = await ask(url, "domain", {})
        file.write_text(json.dumps(facts))
        yield DatabasesProcess(url, ledger, file, facts)


async def _serving(process: Process) -> None:
    while "serving" not in process.last_words:
        assert process.process.returncode is None, "\n".join(process.last_words)
        await asyncio.sleep(0.05)


@dataclass
class Endpoint:
    """The model's endpoint, which can be killed and started again at the same address."""

    facts_file: Path
    mistakes: bool
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _process: Process | None = None

    def environment(self) -> dict[str, str]:
        """The environment with which a worker uses it."""
        return {"OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "exam"}

    def pids(self) -> list[int]:
        """Its process."""
        return [self._process.pid] if self._process else []

    async def restart(self) -> None:
        """Start it, also after it was killed."""
        await self.stop()
        command: list[str | Path] = [sys.executable, "-m", "tests.exam.gold_player", str(self.port), self.facts_file]
        command += [] if self.mistakes else ["--no-mistakes"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = await self._stack.enter_async_context(running("endpoint", command, environment))
        self._process = process
        await _serving(process)

    async def stop(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            await self._stack.aclose()
        self._stack = AsyncExitStack()


@dataclass
class Stand:
    """All that a sitting needs, while it runs."""

    sitting: Sitting
    databases: DatabasesProcess
    client: Client
    outcome: Outcome
    note: Note

    @property
    def queue(self) -> str:
        """The task queue."""
        return f"chaos-{self.sitting.seed}"

    async def play(self, task: int, places: asyncio.Semaphore) -> None:
        """Play a task, and note its result."""
        async with places:
            if time.time() > self.sitting.until:
                return
            began, name = time.time(), run_name(self.sitting.seed, task, self.sitting.contender)
            handle = await self._start(name, self.databases.facts["tasks"][task]["prompt"])
            await end_of(handle, self.outcome)
            result = self.outcome.results.get(name, {"status": "stuck"})
            if result == {"status": "stuck"}:
                await handle.terminate()
            verdict = await ask(self.databases.url, "judge", {"run": name, "task": task})
            applied = set(verdict.pop("applied_calls"))
            is_ours = self.sitting.contender == MULLIGAN and result["status"] != "stuck"
            told = _told(await _steps(handle), self._writes(), applied) if is_ours else {}
            status = result["status"][:LONGEST_STATUS] if isinstance(result, dict) else "completed"
            seconds = round(time.time() - began, 1)
            load = round(os.getloadavg()[0], 1)
            self.note({"task": task, "status": status, "seconds": seconds, "load": load, **verdict, **told})

    def _writes(self) -> set[str]:
        return {tool["name"] for tool in self.databases.facts["tools"] if tool["writes"]}

    async def _start(self, name: str, prompt: str) -> WorkflowHandle[Any, Any]:
        text = f"{name}\n\n{prompt}"
        ours = self.sitting.contender == MULLIGAN
        workflow, given = ("AgentWorkflow", {"agent": "clerk", "prompt": text}) if ours else ("ChaosWorkflow", text)
        while True:
            try:
                return await self.client.start_workflow(workflow, given, id=name, task_queue=self.queue)
            except WorkflowAlreadyStartedError:  # by a request whose answer was lost
                return self.client.get_workflow_handle(name)
            except RPCError:  # the server was killed
                await asyncio.sleep(0.2)


async def sit(sitting: Sitting, served: DatabasesProcess, folder: Path, note: Note) -> None:
    """Play the tasks under kills. `note` gets a line for each task that has ended, and one for each kill."""
    outcome = Outcome(Plan(sitting.seed, processes=sitting.processes, pause=sitting.pause))
    endpoint, server = Endpoint(served.facts_file, sitting.mistakes), RestartedServer(folder, ())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(endpoint.stop)
        await endpoint.restart()
        stack.push_async_callback(server.stop)
        shared = await server.start()
        environment = {
            **os.environ,
            **environment_of(shared),
            **endpoint.environment(),
            URL: served.url,
            FACTS: str(served.facts_file),
            "CHAOS_LEDGER": str(served.ledger),
            "MULLIGAN_GRACE_SECONDS": "5",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
        }
        client = await connect_to(shared)
        stand = Stand(sitting, served, client, outcome, lambda line: note({**sitting.labels(), **line}))
        workers = await stack.enter_async_context(_workers(stand, environment))
        chance = random.Random(f"{sitting.seed} {sitting.domain}")
        faults = Faults(outcome, chance, workers.serving, served.ledger, workers.ready)
        kill: dict[Victim, Callable[[], Awaitable[None]]] = {
            "process": faults.kill_child,
            "supervisor": partial(faults.kill_once, workers.supervisors, workers.restart),
            "server": partial(faults.kill_once, server.pids, server.restart),
            "endpoint": partial(faults.kill_once, endpoint.pids, endpoint.restart),
        }
        if not workers.has_supervisor:
            del kill["supervisor"]
        places = asyncio.Semaphore(sitting.at_once)
        async with in_background(_kills(faults, kill, chance, stand)):
            await asyncio.gather(*(stand.play(task, places) for task in sitting.tasks))


async def _kills(
    faults: Faults, kill: dict[Victim, Callable[[], Awaitable[None]]], chance: random.Random, stand: Stand
) -> None:
    odds = [ODDS[victim] for victim in kill]
    later: Iterator[Victim] = (chance.choices(list(kill), odds)[0] for _ in itertools.count())
    for victim in itertools.islice(itertools.chain(kill, later), stand.sitting.kills):
        await faults.pause()
        killing = asyncio.ensure_future(kill[victim]())
        try:
            await (killing if victim == "process" else asyncio.shield(killing))
        except asyncio.CancelledError:
            if victim != "process":
                await killing  # it starts a process again, which cannot be given up halfway
            raise
        stand.note({"killed": victim})


@dataclass
class _Serving:
    """The worker processes of a sitting, of whatever contender."""

    serving: Callable[[], list[int]]
    ready: Callable[[], Awaitable[bool]]
    supervisors: Callable[[], list[int]] = list
    restart: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    has_supervisor: bool = False


@asynccontextmanager
async def _workers(stand: Stand, environment: dict[str, str]) -> AsyncIterator[_Serving]:
    sitting, plan = stand.sitting, stand.outcome.plan
    if sitting.contender == MULLIGAN:
        workers = Workers(plan, environment, stand.outcome.said, "tests.exam.clerk")
        try:
            await workers.start()

            async def ready() -> bool:
                return len(workers.children()) == sitting.processes

            yield _Serving(workers.children, ready, lambda: workers.pids, workers.restart, has_supervisor=True)
        finally:
            await workers.stop()
        return
    rival = rival_of(sitting.contender)
    environment |= {**rival.kind.environment, "PYTHONPATH": str(ROOT), "CHAOS_ONCE": "1" if rival.once else "0"}
    async with kept_processes(rival, stand.queue, plan.processes, environment) as processes:
        polling = partial(all_poll, stand.client, stand.queue, processes, plan.processes)

        async def all_serve() -> bool:
            with suppress(RPCError):  # the server was killed
                return await polling()
            return False

        while not await all_serve():
            await asyncio.sleep(0.1)
        yield _Serving(lambda: sorted(processes), all_serve)


def rival_of(name: str) -> Rival:
    """A rival of `python -m tests.chaos.compare`, with its worker for the exam."""
    [rival] = [each for each in RIVALS if each.name == name]
    return replace(rival, module=f"tests.exam.rivals.{rival.kind.name}_clerk")


async def _steps(handle: WorkflowHandle[Any, Any]) -> list[dict[str, Any]]:
    """The steps of a run; a query that a kill has ended is tried again."""
    steps: list[dict[str, Any]] = []
    while True:
        try:
            page = (await handle.query("steps", args=[len(steps), 100]))["steps"]
        except (RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError):
            await asyncio.sleep(0.2)
            continue
        if not page:
            return steps
        steps += page


def _told(steps: list[dict[str, Any]], writes: set[str], applied: set[str]) -> dict[str, Any]:
    """What the run was told of its calls, beside what the ledger has of them."""
    calls = [call for step in steps for call in step["tool_calls"]]
    kinds = {call["id"]: (call["result"]["error"] or {}).get("kind") for call in calls}
    of_writes = [call["id"] for call in calls if call["name"] in writes]
    return {
        "steps": len(steps),
        "mistakes_told": sum(kind is not None and kind not in _LOST_KINDS for kind in kinds.values()),
        "lost_calls": sum(kind in _LOST_KINDS for kind in kinds.values()),
        "invented": [each for each in of_writes if kinds[each] is None and each not in applied],
        "denied": [each for each in of_writes if kinds[each] not in (None, *_LOST_KINDS) and each in applied],
    }
