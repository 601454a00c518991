"""The calls of earlier runs with their results, as far as this worker has read them for forks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from temporalio.client import Client, WorkflowExecutionStatus

from mulligan.client.read_run import read_messages, read_steps
from mulligan.values import Message, Step
from mulligan.wire.recorded_outcome import RecordedOutcome, records_of
from mulligan.wire.recorded_tools import RecordSource

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of results in memory. Of the run that was read last, all are there."""


@dataclass
class _Source:
    """What was read of a run, by one reader at a time: its calls by their digests, in their order; None: nothing yet.

    `size`: the bytes of their texts. `is_open`: whether more calls may follow.
    """

    calls: dict[str, list[RecordedOutcome | None]] | None = None
    size: int = 0
    is_open: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def record(self, digest: str, number: int) -> RecordedOutcome | None:
        """The record of a call, as far as the run was read."""
        calls = (self.calls or {}).get(digest, [])
        return calls[number] if number < len(calls) else None

    async def read(self, client: Client, source: RecordSource) -> None:
        """Read all calls of the run from a step on."""
        handle = client.get_workflow_handle(source.workflow_id, run_id=source.run_id)
        described = await handle.describe()  # before its steps: it may end while they are read
        steps = await read_steps(client, handle, source.step - 1, conversation=source.conversation)
        messages = await read_messages(client, handle, conversation=source.conversation)
        self.calls = records_of(map(Step.model_validate, steps), _MESSAGES.validate_python(messages))
        self.size = sum(len(each.text) for records in self.calls.values() for each in records if each)
        self.is_open = described.status == WorkflowExecutionStatus.RUNNING


class CallRecords:
    """The calls that were read. It keeps those of the runs that were used last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[Any, ...], _Source] = OrderedDict()

    async def find(self, client: Client, source: RecordSource, digest: str, number: int) -> RecordedOutcome | None:
        """The record of a call by its digest and its number among equal calls; None if there is none with a result.

        A run without the record is read again if it was open.

        Raises:
            RPCError: no worker answers, or there is no such run.
        """
        key = tuple(source.model_dump().values())
        run = self._runs.setdefault(key, _Source())
        self._runs.move_to_end(key)
        async with run.lock:
            if run.is_open and run.record(digest, number) is None:
                try:
                    await run.read(client, source)
                finally:
                    self._forget()
            return run.record(digest, number)

    def _forget(self) -> None:
        """Forget runs that could not be read, and of the others those that were used first, until they are small enough."""
        for key in [key for key, run in self._runs.items() if run.calls is None and not run.lock.locked()]:
            del self._runs[key]
        while len(self._runs) > 1 and sum(run.size for run in self._runs.values()) > MOST_BYTES:
            self._runs.popitem(last=False)
