"""A long conversation with many calls, as in temporalio/sdk-python#1890: by Temporal's plugin, and adopted by Mulligan.

    uv run python -m benchmarks.long_conversation [--calls 100] [--tokens 209000,105000]

One agent of openai-agents: a user's message of so many tokens (4 bytes each), then a tool that returns 5 KB, called until
the model has been called 100 times. Its model is scripted, the server has its default limits. Once it is run by
`temporalio-openai-agents` (its tool as an activity), and once by `mulligan worker`, which loads `adopt(agent)`. Each has an
environment of its own, with the same version of openai-agents. Printed as a table: at which call the run ended, how, and
how much history it has: all runs of its chain together, with what continue-as-new carries.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
import uuid
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowFailureError

from benchmarks.contenders import ROOT
from benchmarks.endurance import chain
from benchmarks.passage import passage, prompt
from benchmarks.stage import Stage, running, stage
from tests.support.own_environment import own_environment

AGENTS, PLUGIN, TEMPORAL = "openai-agents==0.22.3", "temporalio-openai-agents==1.1.0", "temporalio[pydantic]==1.35.0"
BYTES_PER_TOKEN = 4
LONGEST = 30 * 60
"""The time limit of a run in seconds."""


def conversation(tokens: int, calls: int, run: str) -> str:
    """A prompt that says how many calls the endpoint makes, and has so many tokens of words."""
    text, number = [prompt(calls - 1, run)], 0
    while sum(map(len, text)) < tokens * BYTES_PER_TOKEN:
        number += 1
        text.append(passage(1_000_000 + number))
    return " ".join(text)


async def commands(queue: str) -> dict[str, list[str | Path]]:
    """The workers' commands, by what they are."""
    plugin = await own_environment("temporalio_openai_agents", "1.1.0-0.22.3", AGENTS, PLUGIN, TEMPORAL)
    needs = f"mulligan @ {ROOT.as_uri()}"
    ours = await own_environment("adopted_openai_agents", "0.22.3", AGENTS, needs, "aiohttp>=3.13")
    worker = ["-m", "mulligan", "worker", "--load", "benchmarks.long_conversation_agent", "--task-queue", queue]
    module = "benchmarks.rivals.openai_agents.long_conversation"
    return {
        "`temporalio-openai-agents`": [plugin / "bin/python", "-m", module, "--queue", queue],
        "adopted by Mulligan": [ours / "bin/python", *worker],
    }


async def measure(made: Stage, name: str, command: list[str | Path], queue: str, tokens: int, calls: int) -> str:
    """Run the conversation by one of them; returns its row of the table."""
    run, began = uuid.uuid4().hex[:10], time.monotonic()
    address = made.client.service_client.config.target_host
    environment = {
        **os.environ, "TEMPORAL_ADDRESS": address, "OPENAI_BASE_URL": f"{made.endpoint_url}/v1", "OPENAI_API_KEY": "b",
        "PYTHONPATH": str(ROOT), "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }  # fmt: skip
    text = conversation(tokens, calls, run)
    is_ours = "Mulligan" in name
    workflow, given = ("AgentWorkflow", {"agent": "bench", "prompt": text}) if is_ours else ("LongConversation", text)
    async with running(name, command, environment):
        handle = await made.client.start_workflow(workflow, given, id=run, task_queue=queue)
        try:
            result = await asyncio.wait_for(handle.result(), LONGEST)
            end = result["status"] if isinstance(result, dict) else "completed"
        except WorkflowFailureError as failure:
            end = f"{type(failure.cause).__name__}: {failure.cause}".splitlines()[0]
        answered = (await made.endpoint_stats())["steps"].get(
            run, 0
        ) + 1  # results in the newest request, and its own answer
        history = await chain(made.client, handle)
    size = (history["bytes"] + history["carried_bytes"]) / 1e6
    return (
        f"| ~{tokens // 1000}k tokens | {name} | {answered} of {calls} | {end} | {size:.2f} MB | {history['runs']} "
        f"| {time.monotonic() - began:.0f} |"
    )


async def main(calls: int, sizes: list[int]) -> None:
    """Measure, and print the table."""
    print(f"openai-agents and Temporal: {AGENTS}, {PLUGIN}, {TEMPORAL}; load of the machine: {os.getloadavg()}")
    print("| conversation | run by | model calls | end | history | runs | seconds |\n|---|---|---:|---|---:|---:|---:|")
    for tokens in sizes:
        for name, command in (await commands("long")).items():
            async with stage([], stock=True) as made:
                print(await measure(made, name, command, "long", tokens, calls), flush=True)


def _parsed() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--tokens", default="209000,105000")
    given = parser.parse_args()
    return {"calls": given.calls, "sizes": [int(each) for each in given.tokens.split(",")]}


if __name__ == "__main__":
    asyncio.run(main(**_parsed()))
