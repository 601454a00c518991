"""Users' workflows with several turns: two agents and code between them; a turn that has a time limit."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from mulligan import DurableAgent


@workflow.defn
class TwoTurns:
    """Two turns of one agent, and one of another."""

    @workflow.run
    async def run(self, models: list[str]) -> list[str]:
        shop, second = DurableAgent("shop"), DurableAgent("asked")
        first = await shop.run("Where is order 7?", model=models[0])
        other = await second.run(f"The shop says: {first.output}", model=models[1])
        again = await shop.run("And order 8?", model=models[0], max_steps=2)
        return [first.output, other.output, again.output, first.trace_id, again.trace_id]


@workflow.defn
class TimedTurn:
    """A turn that is cut short after two seconds, and another one."""

    @workflow.run
    async def run(self, model: str) -> list[str]:
        desk = DurableAgent("desk")
        said = []
        try:
            await asyncio.wait_for(desk.run("Give it back.", model=model), 2)
        except TimeoutError as error:
            said.append(type(error).__name__)
        again = await desk.run("And now?", model=model)
        return [*said, again.output]
