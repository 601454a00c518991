"""How soon a watcher has what a model writes: `uv run python -m benchmarks.live_latency [--runs 10] [--seconds 20]`.

Each run writes a text, and then the arguments of a call, in small pieces, and has a watcher of its events at `mulligan
serve`. Printed as JSON: the seconds from a piece's writing to its arrival, for all pieces; and for each second of writing
the requests that Temporal got, and the CPU time of the worker, `mulligan serve` and the server.

One run goes before, which is not measured: it loads what a fresh worker and a fresh `mulligan serve` load once.
A dev server, a worker and `mulligan serve` are processes of their own; this one has the model and the watchers. To compare
with another state of the project, run this file in a copy of that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx2
from aiohttp import web

from benchmarks.model_endpoint import model_endpoint
from benchmarks.process import cpu_of
from benchmarks.server_counts import counted_server
from benchmarks.watchers import percentiles, serve_process
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

PACE, PIECE = 0.03, 8
"""Seconds between two pieces, and characters of one."""
OPERATIONS = ("RecordActivityTaskHeartbeat", "DescribeWorkflowExecution", "QueryWorkflow")


class Model:
    """A model's endpoint that knows when it has written each piece."""

    def __init__(self, seconds: float) -> None:
        self._pieces = int(seconds / PACE / 2)
        self.written: dict[tuple[str, str], list[float]] = defaultdict(list)
        """When each piece was written, by the model and `text` or `input`."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Write the text in pieces, and note when each was written."""
        asked = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        is_last = any(message["role"] == "tool" for message in asked["messages"])
        for kind, piece in [] if is_last else self._answer_in_pieces():
            await response.write(_chunk(_delta(kind, piece)))
            if piece:
                self.written[asked["model"], kind].append(time.monotonic())
                await asyncio.sleep(PACE)
        await response.write(_chunk({"content": "Done."} if is_last else {}, "stop" if is_last else "tool_calls"))
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response

    def _answer_in_pieces(self) -> list[tuple[str, str]]:
        texts = [("text", f"{number:0{PIECE}d}") for number in range(self._pieces)]
        arguments = "".join(f"{number:0{PIECE}d}" for number in range(self._pieces))
        written = json.dumps({"customer": arguments})
        inputs = [("input", written[place : place + PIECE]) for place in range(0, len(written), PIECE)]
        return [*texts, ("begin", ""), *inputs]


def _delta(kind: str, piece: str) -> dict[str, Any]:
    if kind == "text":
        return {"content": piece}
    begun = {"id": "call_1", "type": "function"} if kind == "begin" else {}
    named = {"name": "search_orders"} if kind == "begin" else {}
    return {"tool_calls": [{"index": 0, **begun, "function": {**named, "arguments": piece}}]}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**chunk, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n".encode()


async def watch(http: httpx2.AsyncClient, run_id: str, model: Model, seconds: dict[str, list[float]]) -> None:
    """Read the events of a run. `seconds` gets those from each piece's writing to its arrival."""
    arrived = {"text": 0, "input": 0}
    kinds = {"text_delta": "text", "tool_input_delta": "input"}
    async with http.stream("GET", f"/api/runs/{run_id}/events", headers={"Accept": "text/event-stream"}) as told:
        async for line in told.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: ") else {}
            now = time.monotonic()
            ends = {kinds[event["type"]]: event["start"] + len(event["text"])} if event.get("type") in kinds else {}
            if event.get("type") == "answered" and event["tool_calls"]:
                ends = {"text": len(event["text"]), "input": len(event["tool_calls"][0]["arguments"])}
            for kind, end in ends.items():
                written = model.written[run_id, kind]
                count = min(len(written), -(-end // PIECE)) if event["type"] == "answered" else end // PIECE
                seconds[kind] += [now - at for at in written[arrived[kind] : count]]
                arrived[kind] = max(arrived[kind], count)


async def follow(http: httpx2.AsyncClient, ids: list[str], model: Model) -> dict[str, list[float]]:
    """Start runs, and read their events to the end: the seconds from each piece's writing to its arrival."""
    late: dict[str, list[float]] = {"text": [], "input": []}

    async def started(run_id: str) -> None:
        body = {"id": run_id, "agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
        (await http.post("/api/runs", json=body)).raise_for_status()
        await watch(http, run_id, model, late)  # at once: nobody has what is written before they look

    await asyncio.gather(*(started(run_id) for run_id in ids))
    return late


def pid_of(address: str) -> int:
    """The process of the dev server."""
    port = address.rpartition(":")[2].encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        words = each.read_bytes().split(b"\0")
        if b"start-dev" in words and b"--port" in words and words[words.index(b"--port") + 1] == port:
            return int(each.parent.name)
    raise ProcessLookupError(address)


async def measure(runs: int, seconds: float) -> dict[str, Any]:
    """The figures for so many runs at once, each of which writes for about so many seconds."""
    model = Model(seconds)
    async with model_endpoint(model.answer) as endpoint, counted_server() as (temporal, counts):
        environment = {**environment_of(temporal), **endpoint}
        limits = httpx2.Limits(max_connections=2 * runs + 10)
        async with (
            worker_process("tests.support.shop_agents", "agents", temporal, **environment) as worker,
            serve_process(environment) as (serve_pid, port),
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120, limits=limits) as http,
        ):
            assert worker.pid is not None
            pids = {"worker": worker.pid, "serve": serve_pid, "server": pid_of(temporal.address)}
            await follow(http, [f"first-{uuid.uuid4().hex[:8]}"], model)  # it loads what later runs find loaded
            ids = [f"live-{uuid.uuid4().hex[:8]}" for _ in range(runs)]
            counted = await counts.now()
            before = {name: cpu_of(pid) for name, pid in pids.items()}
            began = time.monotonic()
            late = await follow(http, ids, model)
            took = time.monotonic() - began
            cpu = {name: round((cpu_of(pid) - before[name]) / took, 3) for name, pid in pids.items()}
            requests = (await counts.now()).since(counted)["requests"]
            return {
                "runs": runs,
                "pieces": len(late["text"]) + len(late["input"]),
                "seconds": {
                    kind: _middle(each) for kind, each in [*late.items(), ("all", late["text"] + late["input"])]
                },
                "requests_per_second": {name: round(requests.get(name, 0) / took, 1) for name in OPERATIONS},
                "cpu": cpu,
            }


def _middle(seconds: list[float]) -> dict[str, float]:
    cuts = percentiles(seconds)
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.runs, given.seconds)), indent=2))


if __name__ == "__main__":
    main()
