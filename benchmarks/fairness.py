"""How long one tenant waits behind another's queue: `uv run python -m benchmarks.fairness [--queued 1000] [--slots 10]`.

A busy tenant queues runs; then another one starts a single run: on a server with `matching.enableFairness`, and on one
without. Printed as JSON, for each: the seconds from the start of the single run to its first model call, and how many model
calls of the busy tenant began in between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from mulligan import RunInput, connect
from mulligan.client.start_run import start_run
from mulligan.devserver import temporal_server
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.worker_process import worker_process

QUEUE = "agents"
FAIRNESS = ("matching.enableFairness=true",)
STARTED_TOGETHER = 50


@dataclass
class Waited:
    """How the single run waited."""

    seconds: float
    busy_calls_before: int


class _Model:
    """Answers every call after `seconds`, and counts those of the busy tenant."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.busy_calls = 0
        self.single = asyncio.Event()
        self.has_begun = asyncio.Event()

    def busy(self, _request: dict[str, Any], _nth: int) -> Turn:
        self.busy_calls += 1
        self.has_begun.set()
        return Turn("done", delay=self._seconds)

    def single_turn(self, _request: dict[str, Any], _nth: int) -> Turn:
        self.single.set()
        return Turn("done")


async def measure(*, fair: bool, queued: int, slots: int, call_seconds: float) -> Waited:
    """Queue runs of one tenant, then start one of another; return how that one waited for its first model call.

    `slots`: activities that the only worker runs at a time. `call_seconds`: of a model call of the busy tenant.
    """
    model = _Model(call_seconds)
    async with temporal_server(dynamic_config=FAIRNESS if fair else ()) as temporal, OpenAIServer() as endpoint:
        endpoint.script("busy", model.busy)
        endpoint.script("single", model.single_turn)
        environment = {**endpoint.environment(), "MULLIGAN_MAX_CONCURRENT_ACTIVITIES": str(slots)}
        client = await connect(temporal.address)
        async with worker_process("tests.support.shop_agents", QUEUE, temporal, **environment):
            limit = asyncio.Semaphore(STARTED_TOGETHER)

            async def start(tenant: str) -> None:
                run_input = RunInput(agent="shop", prompt="Go.", model=f"openai-chat:{tenant}", tenant=tenant)
                async with limit:
                    await start_run(client, run_input, f"{tenant}-{uuid.uuid4().hex}", QUEUE)

            await asyncio.gather(*(start("busy") for _ in range(queued)))
            await model.has_begun.wait()
            began, before = time.monotonic(), model.busy_calls
            await start("single")
            await model.single.wait()
            return Waited(round(time.monotonic() - began, 3), model.busy_calls - before)


async def _both(queued: int, slots: int, call_seconds: float) -> dict[str, Any]:
    found = {
        name: asdict(await measure(fair=fair, queued=queued, slots=slots, call_seconds=call_seconds))
        for name, fair in (("without_fairness", False), ("with_fairness", True))
    }
    return {"queued": queued, "slots": slots, "call_seconds": call_seconds, **found}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.1)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(_both(given.queued, given.slots, given.seconds)), indent=2))


if __name__ == "__main__":
    main()
