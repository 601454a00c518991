"""The floor: a workflow that does nothing but two no-op activities a step."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def nothing() -> None:
    """Do nothing."""


@workflow.defn
class Floor:
    """As many activities as an agent run of `steps` steps has, and no more to it."""

    @workflow.run
    async def run(self, steps: int) -> None:
        """Take the steps."""
        for _ in range(2 * steps):
            await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=10))
