"""A workflow of a user's own, with two agents at work at the same time, and a handler whose name we would take."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from mulligan import DurableAgent


@workflow.defn
class TwoDesks:
    """Two turns, side by side."""

    def __init__(self) -> None:
        self._left, self._right = DurableAgent("desk"), DurableAgent("desk")

    @workflow.run
    async def run(self, models: list[str]) -> list[dict[str, object]]:
        left = self._left.run("Left.", model=models[0])
        right = self._right.run("Right.", model=models[1])
        return [result.model_dump(mode="json") for result in await asyncio.gather(left, right)]

    @workflow.update
    def answer(self, text: str) -> str:
        """A handler of the user's own: ours of that name stays away."""
        return f"own: {text}"
