"""A user's workflow with two agents and code between their turns."""

from __future__ import annotations

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
