"""A worker of the benchmark: it serves a task queue, or replays a history and prints the time.

    python -m benchmarks.floor --queue QUEUE
    python -m benchmarks.floor --replay HISTORY.json --times 5

Used by the floor and by rivals, each in its own environment: therefore it imports only temporalio. The address of the server
is in TEMPORAL_ADDRESS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHistory
from temporalio.plugin import SimplePlugin
from temporalio.worker import Replayer, Worker


def main(
    workflows: Sequence[type], activities: Sequence[Callable[..., Any]] = (), plugins: Sequence[SimplePlugin] = ()
) -> None:
    """Run the command line; the plugins are passed to the client, which passes them to the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queue", default="bench")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    if given.replay:
        asyncio.run(replay(Replayer(workflows=workflows, plugins=[*plugins]), given.replay, given.times))
    else:
        asyncio.run(serve(given.queue, workflows, activities, plugins))


async def serve(
    queue: str, workflows: Sequence[type], activities: Sequence[Callable[..., Any]], plugins: Sequence[SimplePlugin]
) -> None:
    """Serve until killed, with the default settings of the SDK or of the plugins."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], plugins=[*plugins])
    await Worker(client, task_queue=queue, workflows=workflows, activities=activities).run()


async def replay(replayer: Replayer, file: Path, times: int) -> None:
    """Replay a history that often, after one warm-up; print a JSON object with its events and the seconds of each repeat."""
    text = json.loads(file.read_text())
    history = WorkflowHistory.from_json("replayed", text)
    seconds, cpu = [], []
    for _ in range(times + 1):
        began, cpu_began = time.perf_counter(), time.process_time()
        await replayer.replay_workflow(history)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    print(json.dumps({"events": len(history.events), "seconds": seconds[1:], "cpu_seconds": cpu[1:]}), flush=True)
    # As in `mulligan.cli.app.run_and_exit`: an interpreter that ends soon after temporalio's work may crash.
    os._exit(0)
