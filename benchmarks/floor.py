"""The floor of all measurements: bare workflows with as many activities as a run of an agent.

`Floor` has two empty activities a step. In `FloorWithHttp` the first of them sends a request to the endpoint through the
openai client, with the conversation that an agent would send at that step, encoded beforehand: so it adds the cost of HTTP
alone.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

from benchmarks import serving

with workflow.unsafe.imports_passed_through():
    from openai import AsyncOpenAI

    from benchmarks.passage import A_DAY, passage

_TIMEOUT = timedelta(seconds=60)
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Give 1 KB.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


@activity.defn
async def nothing() -> None:
    """Do nothing."""


@activity.defn
async def sleep() -> None:
    """Keep the run open."""
    await asyncio.sleep(A_DAY)


class Asking:
    """The activity that sends requests; it has one client and the encoded conversation, which is the same in all runs."""

    def __init__(self) -> None:
        self._client: AsyncOpenAI | None = None
        self._turns: list[str] = []

    @activity.defn(name="ask")
    async def ask(self, prompt: str, step: int) -> None:
        """Send the conversation before the step (counted from 0), and read the answer."""
        if self._client is None:
            self._client = AsyncOpenAI(max_retries=0)
        for number in range(len(self._turns), step):
            function = {"name": "look", "arguments": json.dumps({"number": number})}
            call = {"id": f"call_{number:024d}", "type": "function", "function": function}
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
            result = {"role": "tool", "tool_call_id": call["id"], "content": passage(number)}
            self._turns.append(f"{json.dumps(said)},{json.dumps(result)}")
        messages = ",".join([json.dumps({"role": "user", "content": prompt}), *self._turns[:step]])
        body = f'{{"model":"bench","tools":[{json.dumps(_TOOL)}],"messages":[{messages}]}}'
        # Not `chat.completions.create`: it processes the fields of each message each time, which is more than a floor.
        answer = await self._client.post("/chat/completions", cast_to=str, content=body.encode())
        json.loads(answer)


@workflow.defn
class Floor:
    """Two empty activities a step."""

    @workflow.run
    async def run(self, given: dict[str, Any]) -> None:
        """Take `given["steps"]` steps; with `given["hold"]` stay open after them."""
        for _ in range(given["steps"]):
            await workflow.execute_activity(nothing, start_to_close_timeout=_TIMEOUT)
            await workflow.execute_activity(nothing, start_to_close_timeout=_TIMEOUT)
        if given["hold"]:
            await workflow.execute_activity(sleep, start_to_close_timeout=timedelta(days=1))


@workflow.defn
class FloorWithHttp:
    """A request and an empty activity a step."""

    @workflow.run
    async def run(self, given: dict[str, Any]) -> None:
        """Take `given["steps"]` steps with `given["prompt"]`, then a last request, as a run of an agent does."""
        for step in range(given["steps"] + 1):
            await workflow.execute_activity("ask", args=[given["prompt"], step], start_to_close_timeout=_TIMEOUT)
            if step < given["steps"]:
                await workflow.execute_activity(nothing, start_to_close_timeout=_TIMEOUT)
        if given["hold"]:
            await workflow.execute_activity(sleep, start_to_close_timeout=timedelta(days=1))


if __name__ == "__main__":
    serving.main([Floor, FloorWithHttp], [nothing, sleep, Asking().ask])
