"""A workflow with agents of two modules. Its queue's workers all serve it: Temporal gives a task of it to any of them."""

from __future__ import annotations

from temporalio import workflow

from mulligan import DurableAgent


@workflow.defn
class BothSides:
    """An agent of `east_agents`, then one of `west_agents`."""

    @workflow.run
    async def run(self) -> list[str]:
        """The output of each."""
        east, west = DurableAgent("east_packer"), DurableAgent("west_clerk")
        return [str((await agent.run("Go.")).output) for agent in (east, west)]
