"""What runs cost a Temporal cluster and the workers: `uv run --group bench python -m benchmarks.capacity`.

Counted from real runs, by Temporal's server itself: events, bytes of history, requests, actions as Temporal Cloud bills
them, requests to the database; and the CPU time and memory of the processes. Raw numbers: benchmarks/results/capacity.jsonl.
What is there is not counted again: an interrupted command continues. From them `docs/capacity.md` is written; `--page`
writes it alone. With another load than the page's (`--load steps_a_day=200,peak=10`) the page is printed, and nothing is
written.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
from temporalio.client import Client

import mulligan
from benchmarks.capacity_page import render
from benchmarks.contenders import ALL, RIVAL_NAMES, ROOT, kinds
from benchmarks.endurance import chain
from benchmarks.live_latency import Model, pid_of, watch
from benchmarks.load_model import Load
from benchmarks.model_endpoint import model_endpoint
from benchmarks.process import cpu_of, usage_of
from benchmarks.results import Job, Results
from benchmarks.server_counts import ServerCounts, counted_server
from benchmarks.stage import prepare, stage
from benchmarks.waiting import KINDS, end_wait, start_waiting
from benchmarks.watchers import serve_process
from mulligan.cli.app import run_and_exit
from mulligan.devserver import DevServer, find_temporal
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

HERE = Path(__file__).parent
FILE = "capacity.jsonl"
STEPS = (0, 10, 40, 160)
CONTENDERS = ("floor", "mulligan", "mulligan-local", *RIVAL_NAMES)
WAITING, IDLE_SECONDS, CALL_SECONDS, LIVE_SECONDS = 100, 60, 60, 20
SETTLE_SECONDS = 15
"""Before a count begins: what has been started has done what it does once, and the first heartbeat has come."""
LIVE = {"unwatched": (0, None), "watched": (1, None), "10 watchers": (10, None), "watched, Temporal Cloud": (1, "1")}
"""By its name: how many watch a run that is written, and how often text is sent; None: the default."""
_LOOKS = ("DescribeWorkflowExecution", "PollWorkflowExecutionHistory", "GetWorkflowExecutionHistory")
"""Requests of the benchmark itself, where runs wait."""


def jobs() -> list[Job]:
    """All that is counted: a figure, of whom, and its size (steps, runs or seconds)."""
    return [
        *(Job("steps", name, size) for name in CONTENDERS for size in STEPS),
        Job("call", "mulligan", CALL_SECONDS),
        *(Job("wait", kind, WAITING) for kind in KINDS),
        *(Job("live", name, LIVE_SECONDS) for name in LIVE),
        *(Job("idle", name, IDLE_SECONDS) for name in ("worker", "serve")),
        Job("list", "serve", 10),
    ]


async def count_steps(job: Job, results: Results) -> None:
    """Count a run of `job.size` steps. Each step has one call, whose result has 1 KB."""
    async with stage([job.contender], listed=True) as made:
        counts = ServerCounts(made.metrics_port)
        pids = {"worker": made.worker(job.contender).pid, "server": made.processes["server"].pid}
        before = await counts.now()
        cpu = {name: cpu_of(pid) for name, pid in pids.items()}
        handle = await made.start(job.contender, job.size)
        await handle.result()
        cpu = {name: round(cpu_of(pid) - cpu[name], 2) for name, pid in pids.items()}
        counted = (await counts.now()).since(before, (*_LOOKS, "DescribeTaskQueue"))
        results.add(job, 0, **counted, **await chain(made.client, handle), cpu=cpu)


async def count_call(job: Job, results: Results) -> None:
    """Count a tool call that is still running, for `job.size` seconds."""
    async with stage([job.contender], listed=True) as made:
        counts = ServerCounts(made.metrics_port)
        handle = await made.start(job.contender, 0, hold=True)
        await _until_in_tool(handle)
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = await counts.now(), time.monotonic()
        await asyncio.sleep(job.size)
        counted, seconds = (await counts.now()).since(before, _LOOKS), time.monotonic() - began
        results.add(job, 0, **counted, seconds=round(seconds, 1))


async def _until_in_tool(handle: Any) -> None:
    while True:
        running = (await handle.describe()).raw_description.pending_activities
        if "call_tool" in [each.activity_type.name for each in running]:
            return
        await asyncio.sleep(0.1)


@dataclass
class Parts:
    """The processes of a count, but for contenders'."""

    client: Client
    counts: ServerCounts
    server: DevServer
    worker: int
    queue: str


@asynccontextmanager
async def parts(module: str, **environment: str) -> AsyncIterator[Parts]:
    """A server that counts, and a worker."""
    queue = "agents"
    async with (
        counted_server() as (server, counts),
        worker_process(module, queue, server, **environment) as worker,
    ):
        assert worker.pid is not None
        yield Parts(await mulligan.connect(server.address), counts, server, worker.pid, queue)


async def count_wait(job: Job, results: Results) -> None:
    """Count runs of two steps that wait between them: until they wait, while they wait, and from its end to theirs."""
    async with parts("benchmarks.waiting_agents") as made:
        pids = {"worker": made.worker, "server": pid_of(made.server.address)}
        warm = await start_waiting(made.client, job.contender, made.queue, [f"warm-{n}" for n in range(10)])
        await asyncio.gather(*(end_wait(made.client, job.contender, each) for each in warm))
        points = [await made.counts.now()]
        memory, cpu = [_private(pids)], [_cpu(pids)]

        async def point() -> None:
            points.append(await made.counts.now())
            memory.append(_private(pids))
            cpu.append(_cpu(pids))

        ids = await start_waiting(made.client, job.contender, made.queue, [f"waiting-{n:04d}" for n in range(job.size)])
        await point()
        handle = made.client.get_workflow_handle(ids[0])
        waits = (await handle.describe()).raw_description.workflow_execution_info
        timers = await open_timers(made.client, ids[0])
        await asyncio.sleep(IDLE_SECONDS)
        await point()
        for each in ids:
            await end_wait(made.client, job.contender, each)
        await point()
        ended = (await handle.describe()).raw_description.workflow_execution_info
        names = ("until it waits", "waiting", "end")
        results.add(
            job,
            0,
            phases={name: points[n + 1].since(points[n], _LOOKS) for n, name in enumerate(names)},
            cpu={name: {of: round(cpu[n + 1][of] - cpu[n][of], 2) for of in pids} for n, name in enumerate(names)},
            memory_kib={of: round((memory[1][of] - memory[0][of]) / 1024 / job.size, 1) for of in pids},
            events={"until it waits": waits.history_length, "end": ended.history_length - waits.history_length},
            bytes={
                "until it waits": waits.history_size_bytes,
                "end": ended.history_size_bytes - waits.history_size_bytes,
            },
            open_timers=timers,
            idle_seconds=IDLE_SECONDS,
        )


def _private(pids: dict[str, int]) -> dict[str, int]:
    return {name: usage_of(pid).private for name, pid in pids.items()}


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    return {name: cpu_of(pid) for name, pid in pids.items()}


async def open_timers(client: Client, run_id: str) -> list[float]:
    """The seconds of the timers of a run that have neither fired nor been cancelled."""
    timers: dict[int, float] = {}
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        if event.HasField("timer_started_event_attributes"):
            timeout = event.timer_started_event_attributes.start_to_fire_timeout
            timers[event.event_id] = timeout.ToMilliseconds() / 1000
        elif event.HasField("timer_fired_event_attributes"):
            timers.pop(event.timer_fired_event_attributes.started_event_id, None)
        elif event.HasField("timer_canceled_event_attributes"):
            timers.pop(event.timer_canceled_event_attributes.started_event_id, None)
    return sorted(timers.values())


async def count_live(job: Job, results: Results) -> None:
    """Count a run whose model writes a text and arguments of a call for `job.size` seconds, with and without a watcher."""
    watchers, every = LIVE[job.contender]
    model = Model(job.size)
    settings = {} if every is None else {"MULLIGAN_LIVE_TEXT_SECONDS": every}
    async with (
        model_endpoint(model.answer) as endpoint,
        parts("tests.support.shop_agents", **endpoint, **settings) as made,
    ):
        environment = environment_of(made.server) | endpoint | settings
        async with (
            serve_process(environment) as (_, port),
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as http,
        ):
            await _written(made, http, model, watchers)  # it loads what later runs find loaded
            before = await made.counts.now()
            run_id = await _written(made, http, model, watchers)
            counted = (await made.counts.now()).since(before)
        times = [each for kind in ("text", "input") for each in model.written[run_id, kind]]
        results.add(job, 0, **counted, seconds=round(max(times) - min(times), 2), watchers=watchers)


async def _written(made: Parts, http: httpx2.AsyncClient, model: Model, watchers: int) -> str:
    run_id = f"live-{uuid.uuid4().hex[:8]}"
    run_input = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    handle = await made.client.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=made.queue)
    await asyncio.gather(*(watch(http, run_id, model, {"text": [], "input": []}) for _ in range(watchers)))
    await handle.result()
    return run_id


async def count_idle(job: Job, results: Results) -> None:
    """Count for `job.size` seconds a worker without runs, alone or beside a `mulligan serve` without requests."""
    async with parts("benchmarks.waiting_agents") as made:
        await start_waiting(made.client, "person", made.queue, ["warm"])
        async with serve_if(job.contender == "serve", made.server):
            await asyncio.sleep(SETTLE_SECONDS)
            before, began, cpu = await made.counts.now(), time.monotonic(), cpu_of(made.worker)
            await asyncio.sleep(job.size)
            after = await made.counts.now()
            seconds, cpu = time.monotonic() - began, cpu_of(made.worker) - cpu
    results.add(job, 0, **after.since(before), seconds=round(seconds, 1), cpu={"worker": round(cpu, 2)})


@asynccontextmanager
async def serve_if(wanted: bool, server: DevServer) -> AsyncIterator[None]:
    """Run `mulligan serve` if it is wanted."""
    if not wanted:
        yield
        return
    async with serve_process(environment_of(server)):
        yield


async def count_list(job: Job, results: Results) -> None:
    """Count `job.size` requests for the list of runs."""
    async with parts("benchmarks.waiting_agents") as made:
        await start_waiting(made.client, "person", made.queue, ["listed"])
        async with (
            serve_process(environment_of(made.server)) as (_, port),
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
        ):
            await http.get("/api/runs")
            before = await made.counts.now()
            for _ in range(job.size):
                (await http.get("/api/runs")).raise_for_status()
            results.add(job, 0, **(await made.counts.now()).since(before))


COUNT = {
    "steps": count_steps, "call": count_call, "wait": count_wait, "live": count_live, "idle": count_idle, "list": count_list,
}  # fmt: skip


def say(line: str) -> None:
    """Print progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def version(program: Path) -> str:
    """The versions that Temporal's program prints."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


async def count(to_do: Sequence[Job], results: Results) -> int:
    """Count all of them; one that fails is reported and skipped. Return how many failed."""
    for kind in kinds([job.contender for job in to_do if job.contender in ALL]):
        prepare(kind)
    results.about["server"] = version(await find_temporal(say))
    failed = 0
    for number, job in enumerate(to_do, 1):
        say(f"[{number}/{len(to_do)}] {job} (load {os.getloadavg()[0]:.1f})")
        try:
            async with asyncio.timeout(15 * 60):
                await COUNT[job.figure](job, results)
        except Exception as error:  # noqa: BLE001 - a failed job must not lose the others
            failed += 1
            say(f"  failed: {type(error).__name__}: {error}")
    return failed


def main(
    only: Annotated[str, typer.Option(help=f"Figures, separated by commas: {', '.join(COUNT)}.")] = "",
    contenders: Annotated[str, typer.Option(help=f"Of `steps`, separated by commas: {', '.join(CONTENDERS)}.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Count the chosen ones again.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Count nothing; write the page.")] = False,
    load: Annotated[str, typer.Option(help=f"Of an open run, in place of the page's: {Load()}.")] = "",
) -> None:
    """Count what runs cost, and write docs/capacity.md."""
    try:
        expected = Load.parse(load)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--load") from None
    kept = Results(HERE / "results", FILE)
    figures, names = ([each for each in given.split(",") if each] for given in (only, contenders))
    to_do = [
        job
        for job in jobs()
        if (not figures or job.figure in figures) and (not names or job.figure != "steps" or job.contender in names)
    ]
    failed = 0
    if not page:
        if again:
            kept.forget(to_do)
        failed = asyncio.run(count([job for job in to_do if kept.missing(job)], kept))
    if missing := [str(job) for job in jobs() if kept.missing(job)]:
        say(f"the page needs: {', '.join(missing)}; count them with: {shlex.join(sys.argv)}")
        raise typer.Exit(1)
    text = render(kept, Results(HERE / "results"), expected)
    if not load:
        (ROOT / "docs" / "capacity.md").write_text(text)
        say("page: docs/capacity.md")
    else:
        print(text)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    run_and_exit(lambda: typer.run(main))
