"""Waits for a new event in the history of a workflow run, by Temporal's long poll, or for something else to happen."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError


class HistoryChanges:
    """Waits for a new event in the history of a workflow run."""

    def __init__(self, client: Client, workflow_id: str) -> None:
        self._client = client
        self._id = workflow_id
        self._run_id = ""
        self._task: asyncio.Task[None] | None = None
        self._read = 0
        self._history: Any = None

    async def wait(
        self, run: WorkflowExecutionDescription, seconds: float, woken: asyncio.Event, *, long_poll: bool
    ) -> bool:
        """Wait for `seconds`, until `woken` is set, or with `long_poll` until the history is longer than that of `run`.

        Returns whether it is longer.
        """
        if long_poll and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._wait_for_more_than(run))
        waking = asyncio.create_task(woken.wait())
        try:
            tasks = {waking, self._task} if long_poll and self._task is not None else {waking}
            await asyncio.wait(tasks, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        return long_poll and self._task is not None and self._task.done()

    def stop(self) -> None:
        """End the long poll."""
        if self._task is not None:
            self._task.cancel()

    async def _wait_for_more_than(self, run: WorkflowExecutionDescription) -> None:
        if self._run_id != run.run_id:
            self._run_id, self._read = run.run_id, 0
            handle = self._client.get_workflow_handle(self._id, run_id=run.run_id)
            self._history = handle.fetch_history_events(wait_new_event=True, skip_archival=True)
        try:
            async for event in self._history:
                self._read = event.event_id
                if self._read > run.history_length:
                    return
        except RPCError:
            self._run_id = ""  # the next check raises the error
        await asyncio.sleep(1)
