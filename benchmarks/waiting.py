"""What thousands of waiting runs need: `uv run python -m benchmarks.waiting [--runs 10000] [--kind person] [--keep]`.

Without `--kind`, all three kinds are measured, one after the other. With `--keep`, a kind that was kept for this commit,
with at least as many runs, is not measured again: a command that was interrupted continues.

A dev server, whose database is in its memory, and one worker are processes of their own. The runs have made one step and
wait for a person, a callback or a timer; the worker's cache keeps the newest of them. Then some are woken, one after the
other. Printed as JSON: memory of worker and server; the time and the worker's CPU time from the update that wakes a run
to the run's end, for runs that are in the cache and for those that the worker must replay. With `--keep` the figures are
added to benchmarks/results, from which `make bench ARGS=--page` prints the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from temporalio.client import Client, WorkflowHandle

import mulligan
from benchmarks.results import commit
from mulligan.devserver import temporal_server

KINDS = ("person", "callback", "timer")
KEPT = Path(__file__).parent / "results" / "waiting.jsonl"
_STARTED_TOGETHER, _MOST_UNDER_WAY = 20, 100
_TICKS = os.sysconf("SC_CLK_TCK")
_ENDS_THE_WAIT: dict[str, tuple[str, dict[str, Any]]] = {
    "person": ("decide", {"call_id": "wait", "decision": "approve"}),
    "callback": ("complete", {"call_id": "wait", "result": "7 rows"}),
    "timer": ("send_message", {"text": "Go on."}),
}


@dataclass
class Usage:
    """What a process has used: bytes of memory now and at most, and seconds of CPU time."""

    memory: int
    most_memory: int
    cpu: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Of a running process."""
        status = Path(f"/proc/{pid}/status").read_text()
        kilobytes = {name: int(value) for name, value in re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status)}
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return cls(kilobytes["VmRSS"] << 10, kilobytes["VmHWM"] << 10, (int(fields[11]) + int(fields[12])) / _TICKS)


async def start_waiting(client: Client, kind: str, queue: str, ids: Sequence[str], longest: float = inf) -> list[str]:
    """Start the runs, and return their ids when all of them wait. After `longest` seconds no more are started.

    Only the oldest of those under way is looked at, so that about one look is needed for each run: the looks of all of them
    at once, twice a second, took the server more time than the runs.
    """
    began = time.monotonic()
    started: list[str] = []
    under_way: deque[WorkflowHandle[Any, Any]] = deque()
    for first in range(0, len(ids), _STARTED_TOGETHER):
        if time.monotonic() - began > longest:
            break
        group = ids[first : first + _STARTED_TOGETHER]
        run_input = {"agent": kind, "prompt": "Go."}
        starts = (client.start_workflow("AgentWorkflow", run_input, id=each, task_queue=queue) for each in group)
        under_way.extend(await asyncio.gather(*starts))
        started += group
        while len(under_way) > _MOST_UNDER_WAY:
            await _until_it_waits(under_way.popleft())
    for handle in under_way:
        await _until_it_waits(handle)
    return started


async def _until_it_waits(handle: WorkflowHandle[Any, Any]) -> None:
    """Ask the server alone: the queries of thousands of runs would take the worker half of its time."""
    while True:
        raw = (await handle.describe()).raw_description
        if not raw.pending_activities and not raw.HasField("pending_workflow_task"):
            return
        await asyncio.sleep(0.1)


async def end_wait(client: Client, kind: str, run_id: str) -> None:
    """End the wait of a run, and wait until the run has ended."""
    handle = client.get_workflow_handle(run_id)
    update, argument = _ENDS_THE_WAIT[kind]
    await handle.execute_update(update, argument)
    result = await handle.result()
    assert result["status"] == "completed", result


async def wake(client: Client, kind: str, pid: int, ids: Sequence[str]) -> dict[str, Any]:
    """Wake the runs one after the other; the seconds until each one has ended."""
    seconds = []
    before = Usage.of(pid)
    for run_id in ids:
        began = time.perf_counter()
        await end_wait(client, kind, run_id)
        seconds.append(time.perf_counter() - began)
    return {
        "runs": len(ids),
        "seconds_p50": round(median(seconds), 3),
        "seconds_p99": round(quantiles(seconds, n=100)[98], 3),
        "worker_cpu_ms": round((Usage.of(pid).cpu - before.cpu) / len(ids) * 1000, 1),
    }


def _server_pid() -> int:
    """The process of the dev server that this process has started."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if b"start-dev" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise LookupError("this process has started no dev server")


async def measure(kind: str, runs: int, cached: int, woken: int, longest: float) -> dict[str, Any]:
    """The figures of so many runs that wait, with a worker that keeps `cached` of them in memory.

    Where the machine does not start them in `longest` seconds, the figures are of fewer runs.
    """
    queue = f"waiting-{uuid.uuid4().hex[:6]}"
    commit()  # which remembers the code as it is now
    async with temporal_server() as temporal:
        server = _server_pid()
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": temporal.address,
            "MULLIGAN_MAX_CACHED_WORKFLOWS": str(cached),
        }
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "worker.py", "--load", "benchmarks.waiting_agents", "--task-queue", queue, env=environment
        )
        try:
            client = await mulligan.connect(temporal.address)
            warm = [f"warm-{number}" for number in range(20)]
            await start_waiting(client, kind, queue, warm)
            await wake(client, kind, worker.pid, warm)
            idle_worker, idle_server = Usage.of(worker.pid), Usage.of(server)
            began = time.perf_counter()
            ids = await start_waiting(client, kind, queue, [f"waiting-{number:06d}" for number in range(runs)], longest)
            took = time.perf_counter() - began
            runs = len(ids)
            held_worker, held_server = Usage.of(worker.pid), Usage.of(server)
            chosen = random.Random(7)
            newest, evicted = ids[-min(cached, runs) // 2 :], ids[: max(runs - 2 * cached, 0)]
            figures = {
                "kind": kind,
                "runs": runs,
                "in_cache": min(cached, runs),
                "seconds_to_start_all": round(took, 1),
                "worker_idle_mb": round(idle_worker.memory / 1e6, 1),
                "worker_waiting_mb": round(held_worker.memory / 1e6, 1),
                "server_kb_per_run": round((held_server.memory - idle_server.memory) / runs / 1e3, 1),
                "woken_from_cache": await wake(
                    client, kind, worker.pid, chosen.sample(newest, min(woken, len(newest)))
                ),
            }
            if len(evicted) > 1:
                returned = chosen.sample(evicted, min(woken, len(evicted)))
                figures["woken_after_eviction"] = await wake(client, kind, worker.pid, returned)
            return {
                **figures,
                "worker_most_mb": round(Usage.of(worker.pid).most_memory / 1e6, 1),
                "load": round(os.getloadavg()[0], 2),
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": commit(),
            }
        finally:
            if worker.returncode is None:
                worker.terminate()
                await worker.wait()


def is_kept(kind: str, runs: int, file: Path = KEPT) -> bool:
    """Whether so many runs of that kind were measured on this commit."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return any(line["kind"] == kind and line["runs"] >= runs and line["commit"] == commit() for line in lines)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be given more than once; all by default")
    parser.add_argument("--cached", type=int, default=1_000, help="MULLIGAN_MAX_CACHED_WORKFLOWS of the worker")
    parser.add_argument("--woken", type=int, default=300)
    parser.add_argument("--longest", type=float, default=3_600, help="no run is started after so many seconds")
    parser.add_argument("--keep", action="store_true", help="add the figures to benchmarks/results/waiting.jsonl")
    given = parser.parse_args()
    for kind in given.kind or KINDS:
        if given.keep and is_kept(kind, given.runs):
            print(f"{kind}: kept for commit {commit()}", file=sys.stderr)
            continue
        figures = asyncio.run(measure(kind, given.runs, given.cached, given.woken, given.longest))
        print(json.dumps(figures, indent=2), flush=True)
        if given.keep:
            with KEPT.open("a") as file:
                file.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
