"""Agents as files while they are edited: `uv run python -m benchmarks.agent_files [--saves 100] [--runs 200] [--edits 20]`.

1. Seconds from saving a file to the first run that works by it. A file is saved by a rename, and runs begin one after the
   other until one of them sends the new instructions to the model; what counts is when that run was started.
2. Runs that changed their version in mid-flight. Runs of five model calls and four tool calls are open at once while the
   file is edited, and while a worker process is killed (SIGKILL) every few seconds: once with a content storage, and once
   without. A run is right if all its requests have the same instructions, and all its steps the digest of that file.

A supervisor with two worker processes serves the folder; this process has the model. Printed as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.contenders import ROOT
from benchmarks.watchers import percentiles
from mulligan import connect, tool
from mulligan.devserver import DevServer, temporal_server
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.processes import children_of
from tests.support.temporal import environment_of

SEED, QUEUE, MODEL = 1, "files", "files"
CALLS, OPEN_AT_ONCE = 4, 20
SECONDS_BETWEEN_KILLS = 15.0


@tool(attempts=10, timeout=60)
async def pause(number: int) -> str:
    """Take some time."""
    await asyncio.sleep(0.5)
    return f"pause {number} is over"


def answer(body: dict[str, Any], nth: int) -> Turn:
    """The model: four calls, then a text; for a prompt that begins with `quick`, the text at once."""
    is_quick = any(str(each.get("content")).startswith("quick") for each in body["messages"])
    return (
        Turn("Done.") if is_quick or nth >= CALLS else Turn(calls=[("pause", json.dumps({"number": nth}), f"p{nth}")])
    )


class Desk:
    """The folder with the agent's file, and the runs."""

    def __init__(self, folder: Path, client: Client, model: OpenAIServer) -> None:
        self.folder, self.client, self.model = folder, client, model
        self.digests: dict[str, str] = {}
        """The version of each file by its instructions."""

    def save(self) -> str:
        """Save the next version of the file; returns its instructions."""
        instructions = f"You are version {len(self.digests)}."
        text = f"---\nmodel: openai-chat:{MODEL}\ntools: [pause]\n---\n{instructions}\n"
        self.digests[instructions] = hashlib.sha256(text.encode()).hexdigest()
        unfinished = self.folder / ".support.tmp"
        unfinished.write_text(text)
        unfinished.rename(self.folder / "support.md")
        return instructions

    async def run(self, prompt: str) -> None:
        """A run to its end."""
        given = {"agent": "support", "prompt": prompt}
        handle = await self.client.start_workflow("AgentWorkflow", given, id=prompt, task_queue=QUEUE)
        await handle.result()

    async def version_of(self, prompt: str) -> str | None:
        """The version that a run has worked by from its beginning to its end; None: there was more than one."""
        steps = (await self.client.get_workflow_handle(prompt).query("steps", args=[0, CALLS + 2]))["steps"]
        sent = {self.digests[each] for each in self.instructions_of(prompt)}
        is_right = len(steps) == CALLS + 1 and len(sent) == 1 and {each["version"] for each in steps} == sent
        return sent.pop() if is_right else None

    def instructions_of(self, prompt: str) -> list[str]:
        """The instructions in the requests of a run."""
        return [each.json["messages"][0]["content"] for each in self.model.requests_of(run=prompt)]


@asynccontextmanager
async def served(temporal: DevServer, model: OpenAIServer, **settings: str) -> AsyncIterator[tuple[Desk, int]]:
    """A folder that a supervisor with two processes serves; yields it and the supervisor's process id."""
    with tempfile.TemporaryDirectory(prefix="agent-files-") as scratch:
        folder = Path(scratch) / "agents"
        folder.mkdir()
        model.requests.clear()
        desk = Desk(folder, await connect(temporal.address, namespace=temporal.namespace), model)
        desk.save()
        environment = {**os.environ, **environment_of(temporal), **model.environment(), **settings}
        words = ["worker.py", "--load", "benchmarks.agent_files", "--agents", str(folder), "--task-queue", QUEUE]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, "--processes", "2", cwd=ROOT, env=environment,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await desk.run("quick start")
            while len(children_of(process.pid, "--processes")) < 2:  # noqa: ASYNC110 - another program starts them
                await asyncio.sleep(0.1)
            yield desk, process.pid
        finally:
            process.terminate()
            await process.wait()


async def save_to_run(desk: Desk, saves: int) -> dict[str, Any]:
    """Seconds from saving a file to the start of the first run that works by it."""
    seconds, chosen = [], random.Random(SEED)
    for number in range(saves):
        await asyncio.sleep(chosen.uniform(0, 1))  # the worker looks at the folder once a second
        instructions, saved, nth = desk.save(), time.monotonic(), 0
        while True:
            began, prompt = time.monotonic(), f"quick {number}.{nth}"
            await desk.run(prompt)
            if desk.instructions_of(prompt) == [instructions]:
                break
            nth += 1
        seconds.append(began - saved)
    cuts = percentiles(seconds)
    return {"saves": saves, "p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "longest": round(max(seconds), 2)}


async def under_kills(desk: Desk, supervisor: int, runs: int, edits: int) -> dict[str, Any]:
    """Runs while the file is edited and processes are killed."""
    places, counted = asyncio.Semaphore(OPEN_AT_ONCE), {"edits": 0, "kills": 0}
    chosen, began = random.Random(SEED), time.monotonic()

    async def kill() -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_KILLS)
            if len(children := children_of(supervisor, "--processes")) == 2:
                with suppress(ProcessLookupError):
                    os.kill(chosen.choice(children), signal.SIGKILL)
                    counted["kills"] += 1

    async def run(number: int) -> tuple[str, bool]:
        async with places:
            if number % (runs // edits) == runs // edits // 2:
                desk.save()
                counted["edits"] += 1
            prompt, before = f"run {number}", counted["edits"]
            await desk.run(prompt)
            return prompt, counted["edits"] > before

    killing = asyncio.create_task(kill())
    outcomes = await asyncio.gather(*map(run, range(runs)))
    killing.cancel()
    while len(children_of(supervisor, "--processes")) < 2:  # noqa: ASYNC110 - other programs start and end
        await asyncio.sleep(0.1)
    await desk.run("quick end")
    versions = [await desk.version_of(prompt) for prompt, _ in outcomes]
    return {
        "runs": runs, **counted, "seconds": round(time.monotonic() - began),
        "changed": versions.count(None),
        "outlasted_an_edit": sum(outlasted for _, outlasted in outcomes),
        "versions": len({*versions} - {None}),
    }  # fmt: skip


async def measure(saves: int, runs: int, edits: int) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {"seed": SEED, "load_before": [round(each, 1) for each in os.getloadavg()]}
    for name in ("with storage", "without storage"):
        async with OpenAIServer() as model, temporal_server() as temporal:
            model.script(MODEL, answer)
            with tempfile.TemporaryDirectory(prefix="agent-files-content-") as content:
                settings = {"MULLIGAN_CONTENT_DIR": content} if name == "with storage" else {}
                async with served(temporal, model, **settings) as (desk, supervisor):
                    if settings and saves:
                        figures["save to run"] = await save_to_run(desk, saves)
                    figures[name] = await under_kills(desk, supervisor, runs, edits)
        print(json.dumps(figures), file=sys.stderr, flush=True)
    return figures | {"load_after": [round(each, 1) for each in os.getloadavg()]}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=100)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--edits", type=int, default=20)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.saves, given.runs, given.edits)), indent=2))


if __name__ == "__main__":
    main()
