"""The size of a run's history, over the whole chain of continue-as-new."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.client import Client

from mulligan.client.start_run import run_before
from mulligan.client.unless_missing import unless_missing


@dataclass(frozen=True)
class ChainSize:
    """The size of a run's history over all its workflow runs, but for those that the server has deleted."""

    runs: int
    events: int
    bytes: int


async def size_of_chain(client: Client, workflow_id: str) -> ChainSize:
    """The size of a run's whole history, as the server counts it."""
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    runs = events = size = 0
    while run_id:
        description = await unless_missing(client.get_workflow_handle(workflow_id, run_id=run_id).describe())
        if description is None:
            break
        info = description.raw_description.workflow_execution_info
        runs, events, size = runs + 1, events + info.history_length, size + info.history_size_bytes
        run_id = await run_before(client, workflow_id, run_id)
    return ChainSize(runs, events, size)
