"""How `mulligan serve` carries many watchers: `uv run python -m benchmarks.watchers [--replicas 3] [--watchers 1000]`.

A dev server, a worker and each replica of `mulligan serve` are processes of their own; this one has the model and the
watchers. The watchers of each run are divided among the replicas. They come 100 at a time. When each has the first event of
its run, the runs begin to write, one after the other within `--spread` seconds. Printed as JSON: the seconds until a watcher
has the first event (`connected`); the seconds from the moment in which a model has written its first piece of text until a
watcher has it (`first_text`); the way of each text from the worker's heartbeat (Temporal's time of it) to the watcher
(`delta`); the memory of the replicas for a watcher; whether each watcher got every event in order; the load of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx2

from benchmarks.results import commit
from mulligan.devserver import temporal_server
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

SENTENCE = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. "
CONNECTED_TOGETHER = 100


@dataclass
class Watcher:
    """What one watcher has read: each event, and the seconds from its time to its arrival."""

    run_id: str
    offsets: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    text: str = ""
    seconds: list[float] = field(default_factory=list)
    end: str = ""
    first_at: float = 0.0
    """When the first text arrived, in seconds of the monotonic clock."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first event."""
    connected_at: float = 0.0

    async def watch(self, host: str, port: int, together: asyncio.Semaphore) -> None:
        """Read the stream to its end."""
        async with together:
            reader, writer = await asyncio.open_connection(host, port)
            head = f"GET /api/runs/{self.run_id}/events HTTP/1.1\r\nHost: {host}:{port}\r\n"
            request = f"{head}Accept: text/event-stream\r\n\r\n"
            writer.write(request.encode())
            assert b" 200 " in await reader.readline()
        async for line in reader:
            if line.startswith(b"id: "):
                self.ids.append(line[4:-1].decode())
            elif line.startswith(b"data: "):
                self._take(json.loads(line[6:]))
                if self.end:
                    break
        writer.close()

    def _take(self, event: dict[str, Any]) -> None:
        if not self.connected.is_set():
            self.connected_at = time.monotonic()
            self.connected.set()
        if not self.first_at and event["type"] in ("text_delta", "answered"):
            self.first_at = time.monotonic()
        if "offset" in event:
            self.offsets.append(event["offset"])
        if event["type"] == "text_delta":
            self.seconds.append(time.time() - datetime.fromisoformat(event["at"]).timestamp())
            self.text += event["text"]
        if event["type"] == "answered":
            self.text = event["text"] if event["text"].startswith(self.text) else "?"
        if event["type"] == "run_ended":
            self.end = event["status"]

    @property
    def is_right(self) -> bool:
        """Whether it got every event once, and in order."""
        in_order = self.offsets == list(range(len(self.offsets)))
        return in_order and len(set(self.ids)) == len(self.ids) and self.end == "completed" and self.text != "?"


@asynccontextmanager
async def serve_process(environment: dict[str, str]) -> AsyncIterator[tuple[int, int]]:
    """`mulligan serve` at a free port; yields its process id and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mulligan", "serve", "--port", "0",
        env={**os.environ, **environment}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        line = (await process.stderr.readline()).decode()
        match = re.search(r":(\d+)\.", line)
        assert match, line
        yield process.pid, int(match[1])
    finally:
        process.terminate()
        await process.wait()


def percentiles(values: list[float]) -> list[float]:
    """The 1st to the 99th percentile."""
    return quantiles(values, n=100) if len(values) > 1 else [0.0] * 99


def memory(pid: int) -> int:
    """Bytes of memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


@dataclass
class Writing:
    """A run whose model begins to write when it is told."""

    run_id: str
    begins: asyncio.Event = field(default_factory=asyncio.Event)
    began_at: float = 0.0

    def turn(self, seconds: float) -> Turn:
        """The answer: it is written for about so many seconds."""
        pieces = max(10, int(seconds / 0.1))
        # The piece before the first text says who writes.
        return Turn((SENTENCE * pieces)[: pieces * 20], pace=0.1, gates={1: self.begins})

    def begin(self) -> None:
        """Write the first piece of text."""
        self.began_at = time.monotonic()
        self.begins.set()


async def measure(runs: int, watchers: int, seconds: float, replicas: int = 1, spread: float = 5.0) -> dict[str, Any]:
    """The figures for so many runs, each of which writes for about so many seconds."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(OpenAIServer())
        temporal = await stack.enter_async_context(temporal_server())
        environment = {**environment_of(temporal), **model.environment()}
        await stack.enter_async_context(worker_process("tests.support.shop_agents", "agents", temporal, **environment))
        served = [await stack.enter_async_context(serve_process(environment)) for _ in range(replicas)]
        written = [Writing(f"watched-{uuid.uuid4().hex[:8]}") for _ in range(runs)]
        for each in written:
            model.script(each.run_id, [each.turn(seconds)])
        await _start(served[0][1], written)
        await model.wait_for_requests(runs)
        return await _measure_runs(served, written, watchers, spread)


async def _start(port: int, written: Sequence[Writing]) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        for each in written:
            body = {"id": each.run_id, "agent": "shop", "prompt": "Go.", "model": f"openai-chat:{each.run_id}"}
            assert (await http.post("/api/runs", json=body)).status_code == 201


async def _measure_runs(
    served: Sequence[tuple[int, int]], written: Sequence[Writing], count: int, spread: float
) -> dict[str, Any]:
    before = sum(memory(pid) for pid, _ in served)
    watchers = [Watcher(written[number % len(written)].run_id) for number in range(count)]
    together, came_at = asyncio.Semaphore(CONNECTED_TOGETHER), time.monotonic()
    tasks = [
        asyncio.create_task(each.watch("127.0.0.1", port_of(number, served, written), together))
        for number, each in enumerate(watchers)
    ]
    all_connected: asyncio.Future[Any] = asyncio.gather(*(each.connected.wait() for each in watchers))
    await asyncio.wait([all_connected, *tasks], return_when=asyncio.FIRST_COMPLETED)
    assert all_connected.done(), next(each.exception() for each in tasks if each.done())
    with_watchers = sum(memory(pid) for pid, _ in served)
    for each in written:
        each.begin()
        await asyncio.sleep(spread / len(written))
    await asyncio.gather(*tasks)
    began = {each.run_id: each.began_at for each in written}
    connected = percentiles([each.connected_at - came_at for each in watchers])
    first = percentiles([each.first_at - began[each.run_id] for each in watchers])
    deltas = [value for each in watchers for value in each.seconds]
    later = percentiles(deltas)
    return {
        "replicas": len(served),
        "runs": len(written),
        "watchers": count,
        "right": sum(each.is_right for each in watchers),
        "connected_p50": round(connected[49], 3),
        "connected_p99": round(connected[98], 3),
        "first_text_p50": round(first[49], 3),
        "first_text_p99": round(first[98], 3),
        "deltas": len(deltas),
        "delta_p50": round(later[49], 3),
        "delta_p99": round(later[98], 3),
        "kb_per_watcher": round((with_watchers - before) / count / 1024, 1),
        "servers_mb": [round(memory(pid) / 1e6, 1) for pid, _ in served],
        "load": round(os.getloadavg()[0], 2),
        "commit": commit(),
    }


def port_of(watcher: int, served: Sequence[tuple[int, int]], written: Sequence[Writing]) -> int:
    """The watchers of each run are at different replicas."""
    return served[(watcher // len(written) + watcher % len(written)) % len(served)][1]


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--watchers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--spread", type=float, default=5, help="the runs begin to write within so many seconds")
    given = parser.parse_args()
    commit()  # which remembers the code as it is now
    figures = measure(given.runs, given.watchers, given.seconds, given.replicas, given.spread)
    print(json.dumps(asyncio.run(figures), indent=2))


if __name__ == "__main__":
    main()
