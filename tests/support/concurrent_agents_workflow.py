"""A user's workflow with two agents that run concurrently, and an update handler with a name that Mulligan uses."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from mulligan import DurableAgent


@workflow.defn
class TwoDesks:
    """Two concurrent turns."""

    def __init__(self) -> None:
        self._left, self._right = DurableAgent("desk"), DurableAgent("desk")

    @workflow.run
    async def run(self, models: list[str]) -> list[dict[str, object]]:
        left = self._left.run("Left.", model=models[0])
        right = self._right.run("Right.", model=models[1])
        return [result.model_dump(mode="json") for result in await asyncio.gather(left, right)]

    @workflow.update
    def answer(self, text: str) -> str:
        """The user's handler: Mulligan does not register its own of that name."""
        return f"own: {text}"
