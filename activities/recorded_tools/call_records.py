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
class _Read:
    """The calls of a run by their digests, in their order; the bytes of their texts; whether more calls may follow."""

    calls: dict[str, list[RecordedOutcome | None]]
    size: int
    is_open: bool


@dataclass
class _Source:
    """What was read of a run, by one reader at a time; None: nothing yet."""

    read: _Read | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


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
            if run.read is None or (run.read.is_open and _record(run.read, digest, number) is None):
                try:
                    run.read = await _read(client, source)
                finally:
                    self._forget()
            return _record(run.read, digest, number)

    def _forget(self) -> None:
        """Forget runs that could not be read, and of the others those that were used first, until they are small enough."""
        for key in [key for key, run in self._runs.items() if run.read is None and not run.lock.locked()]:
            del self._runs[key]
        while len(self._runs) > 1 and sum(run.read.size for run in self._runs.values() if run.read) > MOST_BYTES:
            self._runs.popitem(last=False)


def _record(read: _Read, digest: str, number: int) -> RecordedOutcome | None:
    calls = read.calls.get(digest, [])
    return calls[number] if number < len(calls) else None


async def _read(client: Client, source: RecordSource) -> _Read:
    """Read all calls of a run from a step on."""
    handle = client.get_workflow_handle(source.workflow_id, run_id=source.run_id)
    described = await handle.describe()  # before its steps: it may end while they are read
    steps = await read_steps(client, handle, source.step - 1, conversation=source.conversation)
    messages = await read_messages(client, handle, conversation=source.conversation)
    calls = records_of(map(Step.model_validate, steps), _MESSAGES.validate_python(messages))
    size = sum(len(each.text) for records in calls.values() for each in records if each)
    return _Read(calls, size, described.status == WorkflowExecutionStatus.RUNNING)
