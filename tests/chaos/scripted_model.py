"""The model of the seeds: which calls it asks for, and which of its callers were gone."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.plan import Kill, Outcome, Plan
from tests.support.openai_server import OpenAIServer
from tests.support.openai_stream import Break
from tests.support.openai_turn import Turn

TOOLS = ("pay", "fetch", "flaky", "refuse", "look", "nothing")
OF_CLERK = ("pay", "fetch")
OF_EVERYTHING = (*TOOLS, "refund", "clerk", "lent__echo")
NAME = re.compile(r"chaos-\d+-\d+(?:/\w+)*")


def name_in(request: dict[str, Any]) -> str | None:
    """The name of the run that a request is for: it is in the instructions, or in the prompt."""
    found = NAME.search(json.dumps(request.get("messages", [])[:2]))
    return found.group() if found else None


def script(plan: Plan, outcome: Outcome) -> Callable[[dict[str, Any], int], Turn]:
    """The turns of the model: calls that the seed decides, and an answer after the steps of the plan."""
    seen: dict[str, dict[str, int]] = {}

    def turn(request: dict[str, Any], _: int) -> Turn:
        name = name_in(request) or ""
        conversation = json.dumps(request["messages"])
        # Not the number of messages of the assistant: a compaction removes them.
        steps = seen.setdefault(name, {})
        is_first = conversation not in steps
        nth = steps.setdefault(conversation, len(steps))
        outcome.model_calls.append((time.time(), name, nth))
        chance = random.Random(f"{plan.seed} {name} {nth}")
        cut = [Break(after=2, drop=True)] if plan.victim == "endpoint" and chance.random() < 0.4 else []
        if nth >= (2 if "/" in name else plan.steps):
            return Turn("done, and that was all there was to do", delay=chance.uniform(0, 0.2), break_first=cut)
        is_clerk = plan.agent == "clerk" or "/" in name
        tools = OF_CLERK if is_clerk else TOOLS if plan.agent == "ledger" else OF_EVERYTHING
        names = chance.sample(tools, chance.choice((1, 1, 1, 2)))
        calls = [
            (tool, _arguments(tool, f"{name}/c{nth}_{number}", chance), f"c{nth}_{number}")
            for number, tool in enumerate(names)
        ]
        delay = chance.uniform(0, 0.6)
        if cut and is_first:
            outcome.kills.append(Kill(time.time() + delay))
            outcome.broken_model_calls.append((time.time() + delay, name))
        return Turn(calls=calls, delay=delay, break_first=cut)

    return turn


def _arguments(tool: str, child: str, chance: random.Random) -> str:
    milliseconds = chance.randint(0, 600)
    values = {"clerk": {"prompt": child}, "lent__echo": {"text": "x" * 300}}
    return json.dumps(values.get(tool, {"milliseconds": milliseconds}))


async def watch_callers(model: OpenAIServer, outcome: Outcome) -> None:
    """Note when the caller of a request was gone before it had the answer."""
    seen = 0
    while True:
        gone = [request for request in model.requests if request.disconnected]
        outcome.broken_model_calls += [(time.time(), name_in(request.json) or "") for request in gone[seen:]]
        seen = len(gone)
        await asyncio.sleep(0.02)
