"""What a step costs: bytes and events of history, and milliseconds over a workflow that does nothing.

    uv run python -m benchmarks.steps

A prompt of 1 KB, one tool call with a result of 1 KB a step, the scripted model; floor and agent in turn, on one server with
the flags of the embedded one; the median of the repeats.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Sequence

from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.floor import Floor, nothing
from mulligan import Agent, Call, Message, Say, Script, connect, tool
from mulligan.agent import Registry
from mulligan.devserver import temporal_server
from mulligan.loading import Loaded
from mulligan.telemetry import Telemetry
from worker import running_worker

SIZES = (10, 40, 160)
REPEATS = 5


@tool
async def look(number: int) -> str:  # noqa: ARG001 - each call has other arguments
    """Give 1 KB."""
    return "x" * 1024


def looks(times: int) -> Script:
    """A model that calls the tool so many times."""

    def turn(messages: Sequence[Message]) -> Say:
        said = sum(message.role == "assistant" for message in messages)
        return Say(calls=[Call("look", {"number": said})]) if said < times else Say("done")

    return Script(f"looks-{times}", [turn])


AGENT = Agent(name="bench", model="scripted:looks-10", tools=[look], max_steps=10_000)


async def timed(client: Client, workflow: str, argument: object, queue: str) -> tuple[float, int, int]:
    """Seconds, events and bytes of one run."""
    began = time.perf_counter()
    handle = await client.start_workflow(workflow, argument, id=f"bench-{uuid.uuid4().hex[:8]}", task_queue=queue)
    await handle.result()
    seconds = time.perf_counter() - began
    info = (await handle.describe()).raw_description.workflow_execution_info
    return seconds, info.history_length, info.history_size_bytes


async def main() -> None:
    """Measure and print."""
    loaded = Loaded(Registry([AGENT], [looks(size) for size in SIZES]), (), ())
    async with temporal_server() as server:
        client = await connect(server.address)
        floor = Worker(client, task_queue="floor", workflows=[Floor], activities=[nothing])
        async with floor, running_worker(client, loaded, Telemetry(), "agents"):
            print("steps | history bytes | bytes/step | events | ms/step | floor ms/step | ratio (min–max)")
            for size in SIZES:
                pairs = []
                given = {"agent": "bench", "prompt": "p" * 1024, "model": f"scripted:looks-{size}"}
                for repeat in range(REPEATS + 1):
                    below = await timed(client, "Floor", size, "floor")
                    ours = await timed(client, "AgentWorkflow", given, "agents")
                    if repeat:  # the first warms up
                        pairs.append((ours[0] / size * 1000, below[0] / size * 1000))
                ratios = [ours_ms / floor_ms for ours_ms, floor_ms in pairs]
                mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
                print(
                    f"{size} | {ours[2]:,} | {ours[2] / size:,.0f} | {ours[1]} | {mine:.1f} | {theirs:.1f} | "
                    f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    asyncio.run(main())
