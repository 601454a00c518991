"""The same kills for Mulligan and for the plugins of rivals, with the same ledger: `python -m tests.chaos.compare`.

Four worker processes serve eight runs of an agent with the tools `pay`, which must happen at most once, and `fetch`, which may
be attempted three times. Processes that run tools are killed at random moments. Mulligan's supervisor replaces a killed process;
those of rivals are replaced here, at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from benchmarks.contenders import ALL, WorkerKind
from benchmarks.stage import prepare
from mulligan.devserver import DevServer, temporal_server
from tests.chaos.faults import faults_of, of_ledger, pauses_of
from tests.chaos.injected import Faults
from tests.chaos.ledger import LEDGER
from tests.chaos.plan import Outcome, Plan
from tests.chaos.report import ROOT, commit, write_page
from tests.chaos.scripted_model import script, watch_callers
from tests.chaos.seed import end_of, history_of, in_background, run_seed
from tests.support.openai_server import OpenAIServer
from tests.support.temporal import environment_of

RESULTS = ROOT / "tests/chaos/results"
COMPARED = ("openai-agents", "pydantic-ai", "strands", "langgraph")
"""Not Temporal's agent harness: its runs are sessions, which are sent messages."""


@dataclass(frozen=True)
class Rival:
    """A rival's worker. `once`: `pay` has one attempt; otherwise Temporal's retry policy, which repeats without a limit."""

    name: str
    title: str
    kind: WorkerKind
    module: str
    once: bool


RIVALS = [
    Rival(
        name=f"{name}{'-once' if once else ''}",
        title=f"{ALL[name].title}, `pay` with {'one attempt' if once else 'the default retry policy'}",
        kind=ALL[name].worker,
        module=f"tests.chaos.rivals.{ALL[name].worker.name}_worker",
        once=once,
    )
    for name in COMPARED
    for once in (False, True)
]
MULLIGAN = "mulligan"


async def main() -> None:
    """Run the seeds of those that have no result yet, then write docs/reliability.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.compare", description=__doc__)
    parser.add_argument("--seeds", default="1-3", metavar="FIRST-LAST")
    parser.add_argument("--only", choices=[MULLIGAN, *(rival.name for rival in RIVALS)], action="append")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    RESULTS.mkdir(exist_ok=True)
    version = commit()  # before the files can change
    for each in RIVALS:
        prepare(each.kind)
    contenders: list[Rival | None] = [None, *RIVALS]
    async with temporal_server() as server:
        for seed in range(int(first), int(last or first) + 1):
            for rival in contenders:
                name = rival.name if rival else MULLIGAN
                file = RESULTS / f"{name}-{seed}.json"
                if file.exists() or (chosen.only and name not in chosen.only):
                    continue
                result = await _result(rival, seed, server) | {"commit": version}
                file.write_text(json.dumps(result, indent=1) + "\n")
                print(json.dumps(result), flush=True)
    write_page(RESULTS)


async def _result(rival: Rival | None, seed: int, server: DevServer) -> dict[str, Any]:
    plan = Plan(seed, only_agent="clerk", steps=40, kills=20)
    with tempfile.TemporaryDirectory() as folder:
        if rival is None:
            outcome = await run_seed(plan, server, Path(folder))
            found = faults_of(outcome)
        else:
            outcome = await run_rival(rival, plan, server, Path(folder) / "ledger")
            found = [*of_ledger(outcome), *_of_ends(outcome)]
    return {
        "contender": rival.name if rival else MULLIGAN,
        "title": rival.title if rival else "Mulligan",
        "seed": seed,
        "load": round(os.getloadavg()[0], 2),
        "kills": len(outcome.kills),
        "runs": plan.runs,
        "effects": len(outcome.ledger),
        "faults": found,
        "pauses": sorted((each.kind, round(each.seconds, 3)) for each in pauses_of(outcome)),
    }


def _of_ends(outcome: Outcome) -> Iterator[str]:
    for run in outcome.history:
        result = outcome.results.get(run)
        if result is None:
            yield f"stuck: {run} did not end"
        elif isinstance(result, dict):
            yield f"failed: {run} ended as {result['status']}"


async def run_rival(rival: Rival, plan: Plan, server: DevServer, ledger: Path) -> Outcome:
    """Run a seed on the worker of a rival; of what happened, the ledger, the model's requests and the history are known."""
    outcome = Outcome(plan)
    ledger.touch()
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(OpenAIServer())
        model.script("chaos", script(plan, outcome))
        queue = f"{rival.name}-{plan.seed}"
        environment = {
            **os.environ,
            **environment_of(server),
            **model.environment(),
            **rival.kind.environment,
            "PYTHONPATH": str(ROOT),
            LEDGER: str(ledger),
            "CHAOS_ONCE": "1" if rival.once else "0",
        }
        processes = await stack.enter_async_context(kept_processes(rival, queue, plan.processes, environment))
        client = await Client.connect(server.address)
        ready = partial(all_poll, client, queue, processes, plan.processes)
        while not await ready():
            await asyncio.sleep(0.1)
        names = [f"chaos-{plan.seed}-{number}" for number in range(plan.runs)]
        handles = [await client.start_workflow("ChaosWorkflow", name, id=name, task_queue=queue) for name in names]
        faults = Faults(outcome, random.Random(plan.seed), lambda: sorted(processes), ledger, ready)
        async with in_background(watch_callers(model, outcome), faults.kill_children()):
            await asyncio.wait([asyncio.create_task(end_of(handle, outcome)) for handle in handles])
        for handle in handles:
            outcome.history[handle.id] = await history_of(client, handle)
            if handle.id not in outcome.results:
                await handle.terminate()
    outcome.ledger = [json.loads(line) for line in ledger.read_text().splitlines()]
    return outcome


async def all_poll(client: Client, queue: str, processes: set[int], count: int) -> bool:
    """Whether this number of processes runs, and each of them polls."""
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    found = (await client.workflow_service.describe_task_queue(request, retry=True)).pollers
    polling = {int(each.identity.partition("@")[0]) for each in found}  # the SDK's identity is pid@host
    return len(processes) == count and processes <= polling


@asynccontextmanager
async def kept_processes(rival: Rival, queue: str, count: int, environment: dict[str, str]) -> AsyncIterator[set[int]]:
    """The ids of this number of worker processes; each that ends is replaced."""
    python = next(iter(rival.kind.command(queue)))
    ids: set[int] = set()

    async def keep() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                python, "-m", rival.module, "--queue", queue, cwd=ROOT, env=environment,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            ids.add(process.pid)
            try:
                await process.wait()
            finally:
                ids.discard(process.pid)
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async with in_background(*(keep() for _ in range(count))):
        yield ids


if __name__ == "__main__":
    asyncio.run(main())
