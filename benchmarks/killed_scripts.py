"""Scripts of code mode whose worker is killed at each of their calls: is each effect there once?

    uv run python -m benchmarks.killed_scripts [--scripts 100] [--seed 1] [--side-by-side 4] [--results FILE]

Each script is run twice: on workers without a supervisor, where the next one starts when one has died, and on a supervisor
with three processes. The file has a line for each script that has ended; those are not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError

from mulligan.devserver import DevServer, temporal_server
from tests.support.command_server import DEVNULL, start_command
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.temporal import connect_to, environment_of
from tests.support.worker_process import worker_process

MODULE = "benchmarks.killed_scripts_agent"
SECONDS_FOR_RUN = 300.0
TRY = """
async def paid(amount: int) -> str:
    try:
        return str(await pay(amount))
    except ToolError:
        return "lost"
"""
SHAPES = {
    "one after the other": "for n in range({calls}):\n    print(n, await paid(n))",
    "side by side": (
        "import asyncio\nfor n, text in enumerate(await asyncio.gather(*[paid(n) for n in range({calls})])):\n"
        "    print(n, text)"
    ),
    "each by the one before": (
        "total = 0\nfor n in range({calls}):\n    text = await paid(n)\n    print(n, text)\n"
        "    total += 0 if text == 'lost' else int(text)\nprint('total', total)"
    ),
}


async def main() -> None:
    """Run what has no result yet, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed_scripts", description=__doc__)
    parser.add_argument("--scripts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=4, help="workers without a supervisor, one script each")
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "killed-scripts.jsonl")
    chosen = parser.parse_args()
    chosen.results.touch()
    has = {(each["mode"], each["script"]) for each in results_of(chosen.results)}
    async with OpenAIServer() as model, temporal_server() as server:
        os.environ.update(model.environment() | {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"})
        client = await connect_to(server)
        for mode in ("unsupervised", "supervised"):
            left = [number for number in range(chosen.scripts) if (mode, number) not in has]

            async def lane(mode: str = mode, left: list[int] = left) -> None:
                async with workers(mode, server) as queue:
                    while left:
                        number = left.pop(0)
                        result = await run(client, model, queue, number, chosen.seed, SECONDS_FOR_RUN)
                        with chosen.results.open("a") as file:
                            file.write(json.dumps({"mode": mode, "script": number, **result}) + "\n")

            await asyncio.gather(*(lane() for _ in range(chosen.side_by_side if mode == "unsupervised" else 1)))
    print(f"{chosen.scripts} scripts, seed {chosen.seed}, load {os.getloadavg()[0]:.1f}\n")
    print(table(results_of(chosen.results)))


@asynccontextmanager
async def workers(mode: str, server: DevServer) -> AsyncIterator[str]:
    """A task queue that always has a worker, or will have one soon."""
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    async with (_restarted if mode == "unsupervised" else _supervised)(queue, server):
        yield queue


@asynccontextmanager
async def _restarted(queue: str, server: DevServer) -> AsyncIterator[None]:
    async def serve() -> None:
        while True:
            async with worker_process(MODULE, queue, server) as process:
                await process.wait()

    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _supervised(queue: str, server: DevServer) -> AsyncIterator[None]:
    process = await start_command(
        *("worker", "--load", MODULE, "--task-queue", queue, "--processes", "3"),
        env=os.environ | environment_of(server), stderr=DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def run(
    client: Client, model: OpenAIServer, queue: str, number: int, seed: int, within: float | None = None
) -> dict[str, Any]:
    """Run a script, whose worker dies at each call; returns what became of its calls.

    Args:
        client: A client of the server.
        model: The model, whose script this is.
        queue: The task queue.
        number: Of the script.
        seed: It decides, with the number, what the script is and when its processes die.
        within: The seconds after which a run is stuck; None: it may take as long as it needs.
    """
    chance = random.Random(f"{seed} {number}")
    calls, shape = chance.randint(2, 4), chance.choice(list(SHAPES))
    code = TRY + SHAPES[shape].format(calls=calls)
    run_id = f"script-{number}-{uuid.uuid4().hex[:6]}"
    model.script(run_id, [Turn(calls=[("run_code", json.dumps({"code": code}), "s")]), Turn(text="done")])
    with tempfile.NamedTemporaryFile() as ledger:
        handle: Any = await client.start_workflow(
            "AgentWorkflow",
            {
                "agent": "payer",
                "prompt": "Go.",
                "model": f"openai-chat:{run_id}",
                "metadata": {"ledger": ledger.name, "seed": f"{seed} {number}"},
            },
            id=run_id,
            task_queue=queue,
        )
        status, told = await _ended(handle.result, within), ""
        if status == "completed":
            steps = (await handle.query("steps", args=[0, 10]))["steps"]
            told = steps[0]["tool_calls"][0]["result"]["text"]
        entries = [json.loads(line) for line in Path(ledger.name).read_text().splitlines()]
    return {
        "shape": shape,
        "status": status,
        "kills": len({each["pid"] for each in entries}),
        **judged(calls, told, entries),
    }


async def _ended(result: Callable[[], Awaitable[dict[str, Any]]], within: float | None) -> str:
    try:
        async with asyncio.timeout(within):
            return str((await result())["status"])
    except TimeoutError:
        return "stuck"
    except WorkflowFailureError as error:
        return f"failed: {error.cause}"


def judged(calls: int, told: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of each call, by its effects and by what the script was told."""
    effects = Counter(each["amount"] for each in entries)
    words = dict(line.split()[:2] for line in told.splitlines() if line[:1].isdigit())
    once = sum(effects[n] == 1 for n in range(calls))
    none_and_told = sum(effects[n] == 0 and words.get(str(n)) == "lost" for n in range(calls))
    wrong = sum(words.get(str(n)) == str(n) and effects[n] != 1 for n in range(calls))
    return {
        "calls": calls,
        "once": once,
        "none_and_told": none_and_told,
        "more": sum(count > 1 for count in effects.values()),
        "wrong": wrong + sum(str(n) not in words for n in range(calls)),
    }


def results_of(path: Path) -> list[dict[str, Any]]:
    """The results in the file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(results: list[dict[str, Any]]) -> str:
    """The figures of both modes, as Markdown."""
    lines = [
        "| workers | scripts that ended | kills | calls | effect once | no effect, and the script was told so | twice | "
        "wrong or missing results |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for mode in ("unsupervised", "supervised"):
        of_mode = [each for each in results if each["mode"] == mode]
        ended = sum(each["status"] == "completed" for each in of_mode)
        keys = ("kills", "calls", "once", "none_and_told", "more", "wrong")
        total = {key: sum(each[key] for each in of_mode) for key in keys}
        share = [f"{total[key]} ({total[key] / max(1, total['calls']):.1%})" for key in keys[2:5]]
        counts = [mode, f"{ended} of {len(of_mode)}", total["kills"], total["calls"], *share, total["wrong"]]
        lines.append(f"| {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    asyncio.run(main())
