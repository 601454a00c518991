"""What a call of a script costs, against a call of an answer and a step with one call: history and CPU time.

    uv run python -m benchmarks.code_mode_calls

Of each, runs with 2 and with 32 calls are compared, so that what a run costs once does not count. The calls of an answer run
side by side, and results that arrive together share a workflow task; a step calls the model, too. CPU time is that of this
process, which is worker, client and model: of a step it has the model server's part, of a script not the interpreter's.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from mulligan import Agent, CodeMode, connect, tool
from mulligan.devserver import temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

FEW, MANY = 2, 32
QUEUE = "calls"


@tool
async def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


script = Agent(name="script", model="openai-chat:nobody", tools=[note], features=[CodeMode()], max_steps=100)
plain = Agent(name="plain", model="openai-chat:nobody", tools=[note], max_steps=100, max_repeats=None)


def of_script(text: str, calls: int) -> list[Turn]:
    """One script that makes all calls."""
    code = f"for n in range({calls}):\n    await note('{text}' + str(n))"
    return [Turn(calls=[("run_code", json.dumps({"code": code}), "s")])]


def of_answer(text: str, calls: int) -> list[Turn]:
    """One answer with all calls."""
    return [Turn(calls=[("note", json.dumps({"text": f"{text}{n}"}), f"n{n}") for n in range(calls)])]


def of_steps(text: str, calls: int) -> list[Turn]:
    """A step for each call."""
    return [Turn(calls=[("note", json.dumps({"text": f"{text}{n}"}), f"n{n}")]) for n in range(calls)]


WAYS: dict[str, tuple[str, Callable[[str, int], list[Turn]]]] = {
    "script": ("script", of_script), "answer": ("plain", of_answer), "step": ("plain", of_steps),
}  # fmt: skip


async def main() -> None:
    """Print the table."""
    os.environ.update({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"})
    async with OpenAIServer() as model, temporal_server() as server:
        os.environ.update(model.environment())
        client, telemetry = await connect(server.address), Telemetry()
        async with running_worker(client, load_agents([script, plain], ()), telemetry, QUEUE):
            await _cost(client, model, *WAYS["script"], "warm")
            print("| characters | a call of a script | of an answer | a step | CPU: script | answer | step |")
            print("|---:|---:|---:|---:|---:|---:|---:|")
            for chars in (1, 1_000, 10_000):
                costs = [await _cost(client, model, *way, "x" * chars) for way in WAYS.values()]
                (bytes_, ms), others = costs[0], costs[1:]
                sizes = [f"{bytes_:,.0f}", *(f"{each:,.0f} ({bytes_ / each:.2f})" for each, _ in others)]
                times = [f"{ms:.0f} ms", *(f"{each:.0f} ms ({ms / each:.2f})" for _, each in others)]
                print(f"| {chars:,} | {' | '.join([*sizes, *times])} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")


async def _cost(
    client: Any, model: OpenAIServer, agent: str, turns: Callable[[str, int], list[Turn]], text: str
) -> tuple[float, float]:
    """Bytes of history and milliseconds of CPU time of one call more."""
    figures = []
    for calls in (FEW, MANY):
        run_id = f"calls-{uuid.uuid4().hex[:8]}"
        model.script(run_id, [*turns(text, calls), Turn(text="done")])
        given = {"agent": agent, "prompt": "Go.", "model": f"openai-chat:{run_id}"}
        began = time.process_time()
        handle = await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=QUEUE)
        result = await handle.result()
        assert (result["status"], result["recovered_failures"]) == ("completed", 0)
        info = (await handle.describe()).raw_description.workflow_execution_info
        figures.append((info.history_size_bytes, (time.process_time() - began) * 1_000))
    (few, soon), (many, late) = figures
    return (many - few) / (MANY - FEW), (late - soon) / (MANY - FEW)


if __name__ == "__main__":
    asyncio.run(main())
