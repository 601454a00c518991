"""One seed: runs on real worker processes, and faults at random moments and at named points."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.service import RPCError

from mulligan.devserver import DevServer, temporal_server
from tests.chaos.injected import Faults, is_ready, plan_points
from tests.chaos.ledger import LEDGER
from tests.chaos.plan import Kill, Outcome, Plan
from tests.chaos.postgres import PostgresServer
from tests.chaos.report import ROOT
from tests.chaos.scripted_model import name_in, script, watch_callers
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.ports import free_ports
from tests.support.processes import children_of, descendants_with
from tests.support.temporal import connect_to, environment_of

SECONDS_FOR_RUNS = 400.0
HISTORY = "limit.historyCount.suggestContinueAsNew=120"
"""A setting of the server, with which a run continues as new once or twice."""
_SHORT = timedelta(seconds=2)


async def run_seed(plan: Plan, shared: DevServer, folder: Path) -> Outcome:
    """Run it; returns what happened, which `faults.py` judges. `shared`: the server, unless the seed kills it."""
    outcome, ledger = Outcome(plan), folder / f"ledger-{plan.seed}"
    ledger.touch()
    async with AsyncExitStack() as stack:
        model, otlp = await stack.enter_async_context(OpenAIServer()), OtlpReceiver()
        await stack.enter_async_context(otlp)
        model.script("chaos", script(plan, outcome))
        server = _restarted_server(plan, folder)
        if server is not None:
            stack.push_async_callback(server.stop)
            shared = await server.start()
        chance = random.Random(plan.seed)
        environment = {
            **os.environ,
            **environment_of(shared),
            **model.environment(),
            **otlp.environment("http/protobuf"),
            **plan_points(outcome, chance, folder),
            "OTEL_METRICS_EXPORTER": "none",
            LEDGER: str(ledger),
            "MULLIGAN_GRACE_SECONDS": "5",
        }
        health = None
        if plan.victim not in ("supervisor", "unsupervised"):  # two of these may run at the same time
            health = environment["MULLIGAN_HEALTH_ADDRESS"] = f"127.0.0.1:{free_ports(1)[0]}"
        workers = Workers(plan, environment, outcome.said)
        stack.push_async_callback(workers.stop)
        await workers.start()
        while not await is_ready(health):
            await asyncio.sleep(0.1)
        client = await connect_to(shared)
        handles = [await _start(client, plan, number) for number in range(plan.runs)]
        faults = Faults(outcome, chance, workers.children, ledger, lambda: is_ready(health))
        async with in_background(
            watch_callers(model, outcome), _approve(handles), _inject(faults, plan, workers, server, otlp)
        ):
            await asyncio.wait([asyncio.create_task(end_of(handle, outcome)) for handle in handles])
        for handle in handles:
            await _read(client, handle, outcome)
        await workers.stop()
        outcome.spans = otlp.spans()
        outcome.requests = {
            name: request.conversation for request in model.requests if (name := name_in(request.json)) is not None
        }
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    outcome.ledger = [entry for entry in entries if entry["event"] != "killed"]
    outcome.kills += [Kill(e["at"], e["pid"], e["point"]) for e in entries if e["event"] == "killed"]
    return outcome


def _inject(
    faults: Faults, plan: Plan, workers: Workers, server: RestartedServer | PostgresServer | None, otlp: OtlpReceiver
) -> Any:
    """What injects the faults of the seed."""
    match plan.victim:
        case "child":
            return faults.kill_children()
        case "frozen":
            return faults.freeze_children()
        case "supervisor" | "unsupervised":
            return faults.kill_and_restart(lambda: workers.pids, workers.restart)
        case "server" | "postgres":
            assert server is not None
            return faults.kill_and_restart(server.pids, server.restart)
        case "otlp":
            return faults.refuse_spans(otlp)
    return asyncio.sleep(0)  # points and endpoints hit by themselves


@asynccontextmanager
async def in_background(*work: Any) -> AsyncIterator[None]:
    """Do this beside the body, and cancel it after.

    Raises:
        Exception: what one of them raised.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [each for each in ended if isinstance(each, Exception)]
        if failed:
            raise failed[0]


class Workers:
    """The worker processes of a seed: a supervisor with its processes, or two workers without one. `module`: what they load."""

    def __init__(
        self,
        plan: Plan,
        environment: dict[str, str],
        said: list[tuple[float, str]],
        module: str = "tests.chaos.ledger_agents",
    ) -> None:
        self._plan, self._environment, self._said, self._module = plan, environment, said, module
        self._processes: list[asyncio.subprocess.Process] = []
        self._reading: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> list[int]:
        """The ids of those that run; the oldest first."""
        return [each.pid for each in self._processes if each.returncode is None]

    def children(self) -> list[int]:
        """The ids of the processes that the supervisor has started."""
        return children_of(self.pids[0], "--processes")

    async def start(self) -> None:
        """Start what the seed needs, and wait until it serves."""
        for _ in range(2 if self._plan.victim == "unsupervised" else 1):
            await self.restart()

    async def restart(self) -> None:
        """Start one more."""
        options = [] if self._plan.victim == "unsupervised" else ["--processes", str(self._plan.processes)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "worker.py", "--load", self._module, "--task-queue",
            f"chaos-{self._plan.seed}", *options, cwd=ROOT, env=self._environment,
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=2**24,
        )  # fmt: skip
        self._processes.append(process)
        assert process.stderr is not None
        word = b"Supervising" if options else b"Serving"
        while word not in (line := await process.stderr.readline()):
            assert line, "the worker has ended"
        self._reading.append(asyncio.create_task(self._read(process.stderr)))

    async def _read(self, stderr: asyncio.StreamReader) -> None:
        async for line in stderr:
            self._said.append((time.time(), line.decode(errors="replace").rstrip()))

    async def stop(self) -> None:
        """Drain them all: their last spans are exported."""
        for process in self._processes:
            if process.returncode is None:
                process.terminate()
        for process in self._processes:
            await process.wait()
        await asyncio.gather(*self._reading)


def _restarted_server(plan: Plan, folder: Path) -> RestartedServer | PostgresServer | None:
    match plan.victim:
        case "server":
            return RestartedServer(folder)
        case "postgres":
            return PostgresServer((HISTORY,))
    return None


class RestartedServer:
    """A Temporal server with a database file, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, settings: Sequence[str] = (HISTORY,)) -> None:
        self._database, self._settings = folder / "temporal.db", settings
        [self._port] = free_ports(1)
        self._stack = AsyncExitStack()

    async def start(self) -> DevServer:
        """Start it."""
        return await self._stack.enter_async_context(
            temporal_server(port=self._port, db=self._database, dynamic_config=self._settings)
        )

    def pids(self) -> list[int]:
        """The processes of the server."""
        return descendants_with(str(self._database.absolute()))[-1:]

    async def restart(self) -> None:
        """Start it again after it was killed."""
        await self.stop()
        self._stack = AsyncExitStack()
        for _ in range(50):  # the port is released when the killed process has ended
            with suppress(Exception):
                await self.start()
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the server did not start again")

    async def stop(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            await self._stack.aclose()


async def _approve(handles: Sequence[WorkflowHandle[Any, Any]]) -> None:
    """Approve each call that waits; a query or an update that a kill has ended is tried again."""
    while True:
        await asyncio.sleep(0.3)
        for handle in handles:
            with suppress(RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError, WorkflowUpdateFailedError):
                for waiting in await handle.query("pending", rpc_timeout=_SHORT):
                    decision = {"call_id": waiting["call_id"], "decision": "approve", "by": "chaos"}
                    await handle.execute_update("decide", decision, rpc_timeout=_SHORT)


async def _start(client: Client, plan: Plan, number: int) -> WorkflowHandle[Any, Any]:
    name = f"chaos-{plan.seed}-{number}"
    handle: WorkflowHandle[Any, Any] = await client.start_workflow(
        "AgentWorkflow", {"agent": plan.agent, "prompt": name}, id=name, task_queue=f"chaos-{plan.seed}"
    )
    return handle


async def end_of(handle: WorkflowHandle[Any, Any], outcome: Outcome) -> None:
    """Wait until a run has ended, and note its result, or the failure in its place; neither if it does not end in time."""
    try:
        async with asyncio.timeout(SECONDS_FOR_RUNS):
            while True:
                try:
                    outcome.results[handle.id] = await handle.result()
                    break
                except RPCError:  # the server was killed
                    await asyncio.sleep(0.2)
    except TimeoutError:
        return
    except Exception as error:  # whatever it is, it is a fault of this seed
        outcome.results[handle.id] = {"status": f"{type(error).__name__}: {error} {error.__cause__!r}"}
    outcome.ended_at[handle.id] = time.time()


async def _read(client: Client, handle: WorkflowHandle[Any, Any], outcome: Outcome) -> None:
    """What the run's queries and its histories say, of all runs of its chain."""
    if handle.id in outcome.results:
        for name, found in (("steps", outcome.steps), ("messages", outcome.messages)):
            page: list[dict[str, Any]] = []
            found[handle.id] = page
            while (answer := await handle.query(name, args=[len(page), 100]))[name]:
                page += answer[name]
    outcome.history[handle.id] = await history_of(client, handle)


async def history_of(client: Client, handle: WorkflowHandle[Any, Any]) -> list[Any]:
    """The events of all runs of its chain."""
    run_id, events = handle.first_execution_run_id, list[Any]()
    while run_id:
        one = client.get_workflow_handle(handle.id, run_id=run_id)
        events += [event async for event in one.fetch_history_events()]
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return events


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
