"""A workflow that a change of its code has broken, as after an incompatible deploy."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow


@workflow.defn
class Drifts:
    """Schedules something else when it is replayed."""

    @workflow.run
    async def run(self) -> None:
        if workflow.unsafe.is_replaying():
            await workflow.execute_activity("nothing", start_to_close_timeout=timedelta(seconds=1))
        await workflow.sleep(0.1)
