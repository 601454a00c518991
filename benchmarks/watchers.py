"""How `mulligan serve` carries many watchers: `uv run python -m benchmarks.watchers [--runs 100] [--watchers 1000]`.

A dev server, a worker and `mulligan serve` are processes of their own; this one has the model and the watchers. Each run
writes a text while its watchers read the stream. Printed as JSON: the way of a delta from the worker's heartbeat (Temporal's
time of it) to the watcher, the memory of the server for a watcher, and whether each watcher got every event in order.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx2

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

    async def watch(self, host: str, port: int, connected: asyncio.Semaphore, open_: asyncio.Event) -> None:
        """Read the stream to its end."""
        async with connected:
            reader, writer = await asyncio.open_connection(host, port)
            head = f"GET /api/runs/{self.run_id}/events HTTP/1.1\r\nHost: {host}:{port}\r\n"
            request = f"{head}Accept: text/event-stream\r\n\r\n"
            writer.write(request.encode())
            assert b" 200 " in await reader.readline()
        open_.set()
        async for line in reader:
            if line.startswith(b"id: "):
                self.ids.append(line[4:-1].decode())
            elif line.startswith(b"data: "):
                self._take(json.loads(line[6:]))
                if self.end:
                    break
        writer.close()

    def _take(self, event: dict[str, Any]) -> None:
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


async def measure(runs: int, watchers: int, seconds: float) -> dict[str, Any]:
    """The figures for so many runs, each of which writes for about so many seconds."""
    pieces = max(10, int(seconds / 0.1))
    async with OpenAIServer() as model, temporal_server() as temporal:
        environment = {**environment_of(temporal), **model.environment()}
        os.environ.update(environment)
        async with (
            worker_process("tests.support.shop_agents", "agents", temporal),
            serve_process(environment) as served,
        ):
            pid, port = served
            ids = [f"watched-{uuid.uuid4().hex[:8]}" for _ in range(runs)]
            for run_id in ids:
                text = SENTENCE * pieces
                model.script(run_id, [Turn(text[: pieces * 20], pace=0.1)])
            return await _measure_runs(pid, port, ids, watchers)


async def _measure_runs(pid: int, port: int, ids: list[str], count: int) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        for run_id in ids:
            body = {"id": run_id, "agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
            assert (await http.post("/api/runs", json=body)).status_code == 201
    before = memory(pid)
    watchers = [Watcher(ids[number % len(ids)]) for number in range(count)]
    connected, opened = asyncio.Semaphore(CONNECTED_TOGETHER), [asyncio.Event() for _ in watchers]
    tasks = [
        asyncio.create_task(each.watch("127.0.0.1", port, connected, is_open))
        for each, is_open in zip(watchers, opened, strict=True)
    ]
    await asyncio.gather(*(each.wait() for each in opened))
    with_watchers, before_all = memory(pid), [len(each.seconds) for each in watchers]
    await asyncio.gather(*tasks)
    settled = [value for each, first in zip(watchers, before_all, strict=True) for value in each.seconds[first:]]
    seconds = sorted(value for each in watchers for value in each.seconds)
    cuts, later = percentiles(seconds), percentiles(settled)
    return {
        "runs": len(ids),
        "watchers": count,
        "right": sum(each.is_right for each in watchers),
        "deltas": len(seconds),
        "seconds_p50": round(cuts[49], 3),
        "seconds_p99": round(cuts[98], 3),
        "all_connected_p50": round(later[49], 3),
        "all_connected_p99": round(later[98], 3),
        "kb_per_watcher": round((with_watchers - before) / count / 1024, 1),
        "server_mb": round(memory(pid) / 1e6, 1),
    }


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--watchers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.runs, given.watchers, given.seconds)), indent=2))


if __name__ == "__main__":
    main()
