"""Steps per second and CPU of supervised workers, by the number of processes: `python -m tests.chaos.throughput`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from mulligan import Agent, Call, Say, Script, tool
from mulligan.devserver import temporal_server
from tests.chaos.report import ROOT
from tests.support.processes import children_of
from tests.support.temporal import connect_to, environment_of

STEPS, RUNS = 40, 24


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


script = Script(
    "throughput",
    [*(Say(calls=[Call("echo", {"text": "x" * 1000}, id=f"c{n}")]) for n in range(STEPS - 1)), Say("done")],
)
throughput = Agent(name="throughput", model="scripted:throughput", tools=[echo], max_steps=STEPS)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server: Any, processes: int) -> dict[str, Any]:
    """Runs at once on that many processes; 0: a worker without a supervisor."""
    queue = f"throughput-{processes}-{time.time():.0f}"
    options = ["--processes", str(processes)] if processes else []
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", "tests.chaos.throughput", "--task-queue", queue, *options, cwd=ROOT,
        env={**os.environ, **environment_of(server)}, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert worker.stderr
    while (b"Supervising" if processes else b"Serving") not in await worker.stderr.readline():
        pass
    client = await connect_to(server)

    async def run(name: str) -> None:
        value = {"agent": "throughput", "prompt": "Go."}
        await client.execute_workflow("AgentWorkflow", value, id=f"{queue}-{name}", task_queue=queue)

    await asyncio.sleep(5)
    await asyncio.gather(*(run(f"warm-{number}") for number in range(6)))
    pids = [worker.pid, *(children_of(worker.pid, "worker.py") if processes else [])]
    before, start = [cpu_seconds(pid) for pid in pids], time.monotonic()
    await asyncio.gather(*(run(str(number)) for number in range(RUNS)))
    seconds, steps = time.monotonic() - start, RUNS * STEPS
    used = [cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
    worker.terminate()
    await worker.wait()
    of_workers = sum(used[1:]) if processes else used[0]
    return {
        "processes": processes,
        "steps_per_second": round(steps / seconds, 1),
        "worker_cpu_ms_per_step": round(1000 * of_workers / steps, 2),
        "supervisor_cpu_ms_per_step": round(1000 * used[0] / steps, 3) if processes else 0,
        "load": round(os.getloadavg()[0], 1),
    }


async def main() -> None:
    """Measure each number of processes twice, or those of the command line."""
    async with temporal_server() as server:
        for processes in map(int, sys.argv[1:] or "01240124"):
            print(json.dumps(await measure(server, processes)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
