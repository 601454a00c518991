"""What `mulligan serve` adds: `uv run python -m benchmarks.http_door [--requests 100] [--steps 100]`.

Printed as JSON. First, the seconds until the first piece of text, one request after the other and the three in turns: from
the model's endpoint itself, through /v1/chat/completions, and through /api (start a run, then follow its events). Then the
seconds until a client that returns has read a run that has ended: all of it, and only the events of the last step.

A dev server, a worker and `mulligan serve` are processes of their own; this one has the endpoint and the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator
from statistics import quantiles
from typing import Any

import httpx2

from benchmarks.watchers import SENTENCE, serve_process
from mulligan.client.event_feed import SECONDS_WITHOUT_WATCHER
from mulligan.devserver import temporal_server
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

MODEL = "nobody"
"""The model of the agent `shop`."""
KEY = {"Authorization": "Bearer test-key"}
"""The endpoint demands it; the server, which has no tokens, ignores it."""
PACE = 0.05
"""Seconds between two pieces of an answer. It takes about 2 s, so that none ends before its first piece has arrived."""

FORGOTTEN_AFTER = SECONDS_WITHOUT_WATCHER + 2


class Door:
    """The three ways to an answer, and to a run."""

    def __init__(self, endpoint: str, http: httpx2.AsyncClient, steps: int) -> None:
        self._endpoint, self._http, self._steps = endpoint, http, steps

    async def bare(self) -> float:
        """Seconds to the first text from the endpoint itself."""
        return await self._chat(f"{self._endpoint}/chat/completions", MODEL)

    async def chat(self) -> float:
        """Seconds to the first text through /v1/chat/completions."""
        return await self._chat("/v1/chat/completions", "shop")

    async def api(self) -> float:
        """Seconds to the first text through /api."""
        began = time.monotonic()
        run_id = await self.start("Write.", 1)
        events = self.events(run_id)
        async for event in events:
            if event["type"] == "text_delta":
                break
        seconds = time.monotonic() - began
        await events.aclose()
        return seconds

    async def start(self, prompt: str, max_steps: int) -> str:
        """Start a run, and return its id."""
        run_id = uuid.uuid4().hex
        body = {"id": run_id, "agent": "shop", "prompt": prompt, "max_steps": max_steps}
        (await self._http.post("/api/runs", json=body)).raise_for_status()
        return run_id

    async def events(self, run_id: str, since: str = "") -> AsyncGenerator[dict[str, Any]]:
        """The events of a run; `id` is the token of an event."""
        token = ""
        headers = {"Accept": "text/event-stream"}
        async with self._http.stream(
            "GET", f"/api/runs/{run_id}/events", params={"since": since}, headers=headers
        ) as told:
            told.raise_for_status()
            async for line in told.aiter_lines():
                if line.startswith("id: "):
                    token = line[4:]
                elif line.startswith("data: "):
                    yield {**json.loads(line[6:]), "id": token}

    async def returned(self) -> dict[str, Any]:
        """Follow a run of many steps to its end, then return to it: at once, and when the server has forgotten it."""
        run_id = await self.start("Count.", self._steps)
        tokens = [event["id"] async for event in self.events(run_id) if event["type"] == "step_started"]
        found: dict[str, Any] = {"steps": len(tokens)}
        ways = (("all_at_once", "", 0.0), ("all", "", FORGOTTEN_AFTER), ("last_step", tokens[-1], FORGOTTEN_AFTER))
        for name, since, pause in ways:
            await asyncio.sleep(pause)
            began = time.monotonic()
            count = len([event async for event in self.events(run_id, since)])
            found[name] = {"seconds": round(time.monotonic() - began, 3), "events": count}
        return found

    async def _chat(self, url: str, model: str) -> float:
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": f"Write. {uuid.uuid4()}"}]}
        began = time.monotonic()
        async with self._http.stream("POST", url, json=body) as told:
            told.raise_for_status()
            async for line in told.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    if choices and choices[0]["delta"].get("content"):
                        break
        return time.monotonic() - began


def answer(steps: int) -> Any:
    """The model: it writes a text, or makes a call in each step but the last."""

    def turn(request: dict[str, Any], number: int) -> Turn:
        is_long = any(message.get("content") == "Count." for message in request["messages"])
        if is_long and number < steps - 1:
            return Turn(calls=[("now", "{}", None)])
        return Turn(SENTENCE * 10, pace=PACE)

    return turn


async def measure(requests: int, steps: int) -> dict[str, Any]:
    """The figures for so many requests each way, and for a run of so many steps."""
    async with OpenAIServer() as model, temporal_server() as temporal:
        environment = {**environment_of(temporal), **model.environment()}
        model.script(MODEL, answer(steps))
        async with (
            worker_process("tests.support.shop_agents", "agents", temporal, **environment),
            serve_process(environment) as (_, port),
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=KEY, timeout=120) as http,
        ):
            door = Door(model.base_url, http, steps)
            ways = {"endpoint": door.bare, "chat_completions": door.chat, "api": door.api}
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(requests):
                for name, way in ways.items():
                    seconds[name].append(await way())
            first = {name: percentiles(found) for name, found in seconds.items()}
            return {"requests": requests, "first_text": first, "returning": await door.returned()}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """The median and the 99th percentile."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(cuts[49], 4), "p99": round(cuts[98], 4)}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.requests, given.steps)), indent=2))


if __name__ == "__main__":
    main()
