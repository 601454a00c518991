"""How long a run waits whose worker is lost, without a supervisor; and how late heartbeats are: what one costs the other.

    uv run python -m benchmarks.lost_worker [--times 3] [--stock] [--only tool --only query …]
    uv run python -m benchmarks.lost_worker --gaps [--runs 60] [--seconds 30]

Two workers without a supervisor serve a run. The one that has it is killed (`kill -9`) or stopped (SIGSTOP, which is to the
server what the loss of its machine is: connections stay open and nothing answers). Printed are the seconds until the next
attempt begins. `--gaps`: the longest time between two heartbeats that reached the server, while many calls wait and one
blocks its event loop or keeps Python's lock; and the heartbeats a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowHandle
from temporalio.service import RPCError

from benchmarks.lost_worker_agents import HANG, LEDGER, starts
from benchmarks.model_endpoint import model_endpoint
from benchmarks.process import usage_of
from mulligan.devserver import DevServer, dev_server, temporal_server
from tests.support.command_server import ROOT
from tests.support.ports import free_ports
from tests.support.temporal import connect_to, environment_of

Run = WorkflowHandle[Any, Any]
KINDS = ("tool", "tool twice", "tool once", "model", "model twice", "local tool", "update", "query")
HOW = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
HANGS_BEFORE = (0.5, 6.0)
"""Seconds that a call runs before its worker is lost."""


@dataclass
class Model:
    """An endpoint that calls the tool that the prompt names, and hangs as often as it says."""

    requests: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When requests arrived, by the name of the run."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Note when the request arrived, and answer it as its prompt says."""
        messages = (await request.json())["messages"]
        prompt = json.loads(next(each["content"] for each in messages if each["role"] == "user"))
        arrived = self.requests[prompt["run"]]
        arrived.append(time.time())
        if len(arrived) <= prompt.get("hang", 0):
            await asyncio.sleep(HANG)
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if prompt.get("tool") and messages[-1]["role"] != "tool":
            function = {"name": prompt["tool"], "arguments": json.dumps(prompt["arguments"])}
            message = {"role": "assistant", "tool_calls": [{"id": "call", "type": "function", "function": function}]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if len(message) > 2 else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        body = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "held",
            "choices": [choice],
            "usage": usage,
        }
        return web.json_response(body)


@dataclass
class Office:
    """The server, the workers and the model of a measurement."""

    client: Client
    model: Model
    environment: dict[str, str]
    queue: str = field(default_factory=lambda: f"lost-{uuid.uuid4().hex[:6]}")
    workers: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    async def staff(self, count: int = 2) -> None:
        """Start workers until so many serve."""
        while len(self.workers) < count:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "worker.py", "--load", "benchmarks.lost_worker_agents", "--task-queue", self.queue,
                cwd=ROOT, env=self.environment, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            self.workers[worker.pid] = worker
            assert worker.stderr is not None
            while b"Serving" not in (line := await worker.stderr.readline()):
                assert line, "the worker has ended"
        # A process's first model call loads its SDK, which takes seconds on a busy machine.
        warm: set[int] = set()
        while not warm >= set(self.workers):
            pause = {"tool": "pause", "arguments": {"seconds": 0.3}}
            runs = [await self.start(f"warm-{uuid.uuid4().hex[:8]}", **pause) for _ in range(4)]
            for run in runs:
                await run.result()
                warm.add(await _pid_of_run(run))

    async def start(self, name: str, **prompt: Any) -> Run:
        """Start a run with what its model is to do."""
        run_input = {"agent": "held", "prompt": json.dumps({"run": name, **prompt})}
        return await self.client.start_workflow("AgentWorkflow", run_input, id=name, task_queue=self.queue)

    async def dismiss(self, pid: int) -> None:
        """End a worker, if it still lives."""
        worker = self.workers.pop(pid)
        with suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


async def _until(ready: Callable[[], Awaitable[Any]], seconds: float = 150) -> Any:
    """What a function returns, once that is not empty."""
    async with asyncio.timeout(seconds):
        while not (value := await ready()):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.02)
    return value


async def _pid_of_call(run: Run) -> int:
    """The worker that calls the run's model."""

    async def running() -> int:
        pending = (await run.describe()).raw_description.pending_activities
        return int(pending[0].last_worker_identity.split("@")[0]) if pending else 0

    return int(await _until(running))


async def _pid_of_run(run: Run) -> int:
    """The worker that has the run in its cache."""
    events = [event async for event in run.fetch_history_events()]
    done = [each for each in events if each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    return int(done[-1].workflow_task_completed_event_attributes.identity.split("@")[0])


async def _lost_call(office: Office, kind: str, how: signal.Signals, chance: random.Random) -> float:
    """The seconds until the next attempt of a call whose worker is lost; of the last loss, if there are two."""
    name, (what, _, twice) = f"{kind}-{uuid.uuid4().hex[:6]}".replace(" ", "-"), kind.partition(" ")
    losses = 2 if twice == "twice" else 1
    tool = {"tool": "hold", "local": "hold_local"}.get(what)
    if kind == "tool once":
        return await _lost_once(office, name, how, chance)
    arguments = {"name": name, "hang": losses}
    prompt = {"tool": tool, "arguments": arguments} if tool else {"hang": losses}
    run = await office.start(name, **prompt)

    async def begun() -> list[float]:
        return [each["at"] for each in starts(name)] if tool else office.model.requests[name]

    seconds = 0.0
    for number in range(losses):
        await _until(partial(_longer_than, begun, number))
        await asyncio.sleep(chance.uniform(*HANGS_BEFORE) if what != "local" else 0.5)
        pid = int(starts(name)[-1]["pid"]) if tool else await _pid_of_call(run)
        os.kill(pid, how)
        lost = time.time()
        seconds = (await _until(partial(_longer_than, begun, number + 1)))[-1] - lost
        await office.dismiss(pid)
        if number + 1 < losses:
            await office.staff()
    await run.result()
    return seconds


async def _lost_once(office: Office, name: str, how: signal.Signals, chance: random.Random) -> float:
    """The seconds until the model is told of a call with one attempt whose worker is lost."""
    run = await office.start(name, tool="pause", arguments={"seconds": HANG})

    async def is_called() -> bool:
        pending = (await run.describe()).raw_description.pending_activities
        return any(each.activity_type.name == "call_tool" and each.last_worker_identity for each in pending)

    await _until(is_called)
    await asyncio.sleep(chance.uniform(*HANGS_BEFORE))
    pid = await _pid_of_call(run)
    os.kill(pid, how)
    lost = time.time()
    await run.result()
    await office.dismiss(pid)
    return office.model.requests[name][1] - lost


async def _longer_than(begun: Callable[[], Awaitable[list[float]]], count: int) -> list[float]:
    return value if len(value := await begun()) > count else []


async def _lost_run(office: Office, kind: str, how: signal.Signals) -> float:
    """The seconds until an update is answered, or a query, that is sent when the run's worker is just lost."""
    name = f"{kind}-{uuid.uuid4().hex[:6]}"
    run = await office.start(name, tool="refund", arguments={"order_id": 7})
    short = timedelta(seconds=30)
    await _until(lambda: run.query("pending", rpc_timeout=short))
    pid = await _pid_of_run(run)
    os.kill(pid, how)
    lost = time.time()
    while True:
        with suppress(RPCError, RPCTimeoutOrCancelledError):
            if kind == "query":
                await run.query("pending", rpc_timeout=short)
            else:
                await run.execute_update("decide", {"call_id": "call", "decision": "approve", "by": "a"}, id="approve")
            break
    seconds = time.time() - lost
    await office.dismiss(pid)
    if kind == "query":
        await office.staff()
        await run.execute_update("decide", {"call_id": "call", "decision": "approve", "by": "a"})
    await run.result()
    return seconds


async def losses(office: Office, kinds: list[str], hows: list[str], times: int, seed: int) -> None:
    """Print a line for each kind of loss."""
    chance = random.Random(seed)
    for how in hows:
        for kind in kinds:
            seconds = []
            for _ in range(times):
                await office.staff()
                lost = _lost_run(office, kind, HOW[how]) if kind in ("update", "query") else None
                seconds.append(round(await (lost or _lost_call(office, kind, HOW[how], chance)), 2))
            print(json.dumps({"worker": how, "during": kind, "seconds": seconds, "load": _load()}), flush=True)


async def gaps(office: Office, metrics: int, runs: int, seconds: float) -> None:
    """Print the longest gaps between heartbeats of waiting calls, alone and beside a call that blocks."""
    import httpx2  # the other measurement does not need it

    async def heartbeats() -> float:
        async with httpx2.AsyncClient() as http:
            lines = (await http.get(f"http://127.0.0.1:{metrics}/metrics")).text.splitlines()
        ours = [
            each for each in lines if each.startswith("service_requests{") and "RecordActivityTaskHeartbeat" in each
        ]
        return sum(float(each.rsplit(" ", 1)[1]) for each in ours if 'service_name="frontend"' in each)

    await office.staff(1)
    [worker] = office.workers
    beside: list[tuple[str, dict[str, Any]]] = [
        ("nothing", {}),
        *((f"a loop blocked for {n} s", {"tool": "block_loop", "arguments": {"seconds": n}}) for n in (2, 4)),
        ("Python's lock kept", {"tool": "hold_interpreter", "arguments": {"rounds": 60_000_000}}),
    ]
    for what, prompt in beside:
        waiting = {"tool": "pause", "arguments": {"seconds": seconds}}
        before, cpu, began = await heartbeats(), usage_of(worker).cpu_seconds, time.time()
        handles = [await office.start(f"gap-{uuid.uuid4().hex[:8]}", **waiting) for _ in range(runs)]
        others = [await office.start(f"other-{uuid.uuid4().hex[:8]}", **prompt) for _ in range(3)] if prompt else []
        longest = max(await asyncio.gather(*(_longest_gap(each, seconds) for each in handles)))
        await asyncio.gather(*(each.result() for each in handles + others))
        figures = {
            "beside": what,
            "calls": runs,
            "longest_gap": round(longest, 2),
            "lost": sum([await _lost_calls(each) for each in handles]),
            "workflow_tasks_that_timed_out": sum([await _timed_out(each) for each in handles + others]),
            "heartbeats_a_second_and_call": round((await heartbeats() - before) / runs / seconds, 3),
            "worker_cpu_ms_a_second_and_call": round((usage_of(worker).cpu_seconds - cpu) / runs / seconds * 1000, 2),
            "took": round(time.time() - began, 1),
            "load": _load(),
        }
        print(json.dumps(figures), flush=True)


async def _longest_gap(run: Run, seconds: float) -> float:
    """By what the server says twice a second: the time since the last heartbeat, or since the start of the attempt."""
    longest, until = 0.0, time.time() + seconds + 20
    while time.time() < until:
        described = (await run.describe()).raw_description
        for each in described.pending_activities:
            if each.activity_type.name == "call_tool" and each.HasField("last_started_time"):
                last = max(
                    at.ToDatetime(tzinfo=UTC).timestamp() for at in (each.last_started_time, each.last_heartbeat_time)
                )
                longest = max(longest, time.time() - last)
        if described.workflow_execution_info.HasField("close_time"):
            break
        await asyncio.sleep(0.5)
    return longest


async def _lost_calls(run: Run) -> int:
    """How many calls of a run were taken for lost, although their worker lived."""
    calls = [call for step in (await run.query("steps"))["steps"] for call in step["tool_calls"]]
    return sum((call["result"]["error"] or {}).get("kind") == "tool_lost" for call in calls)


async def _timed_out(run: Run) -> int:
    """How many workflow tasks of a run its worker did not begin, or complete, in time."""
    events = [event async for event in run.fetch_history_events()]
    return sum(each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT for each in events)


def _load() -> float:
    return round(os.getloadavg()[0], 1)


@asynccontextmanager
async def _server(metrics: int, *, stock: bool, settings: list[str]) -> AsyncIterator[DevServer]:
    if stock:
        dev_server.DYNAMIC_CONFIG = ()  # type: ignore[assignment]
    async with temporal_server(dynamic_config=settings, options=["--metrics-port", str(metrics)]) as server:
        yield server


async def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_worker", description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--how", action="append", choices=list(HOW))
    parser.add_argument("--stock", action="store_true", help="Temporal's default settings, not those of `mulligan dev`")
    parser.add_argument("--setting", action="append", default=[], help="a dynamic setting of the server, as key=value")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    model, metrics = Model(), free_ports(1)[0]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        ledger.touch()
        os.environ[LEDGER] = str(ledger)
        async with (
            model_endpoint(model.answer) as endpoint,
            _server(metrics, stock=given.stock, settings=given.setting) as server,
        ):
            quiet = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
            environment = {**os.environ, **environment_of(server), **endpoint, **quiet}
            office = Office(await connect_to(server), model, environment)
            try:
                if given.gaps:
                    await gaps(office, metrics, given.runs, given.seconds)
                else:
                    await losses(office, given.only or list(KINDS), given.how or list(HOW), given.times, given.seed)
            finally:
                for pid in list(office.workers):
                    await office.dismiss(pid)


if __name__ == "__main__":
    asyncio.run(main())
