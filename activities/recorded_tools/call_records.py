"""The calls of earlier runs with their results, as far as this worker has read them for forks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from temporalio.client import Client

from mulligan.client.read_run import read_messages, read_steps
from mulligan.values import Message, Step
from mulligan.wire.recorded_outcome import RecordedOutcome, records_of
from mulligan.wire.recorded_tools import RecordSource

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of results in memory. Of the run that was read last, all are there."""


@dataclass
class _Read:
    """The calls of a run by their digests, in their order; and the characters of their texts."""

    calls: dict[str, list[RecordedOutcome | None]]
    size: int


class CallRecords:
    """The calls that were read. It keeps those of the runs that were used last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[Any, ...], _Read] = OrderedDict()
        self._lock = asyncio.Lock()

    async def find(self, client: Client, source: RecordSource, digest: str, number: int) -> RecordedOutcome | None:
        """The record of a call by its digest and its number among equal calls; None if there is none with a result.

        A run without the record is read again, as it may be open.

        Raises:
            RPCError: no worker answers, or there is no such run.
        """
        key = tuple(source.model_dump().values())
        async with self._lock:
            if (read := self._runs.get(key)) is not None:
                self._runs.move_to_end(key)
                if (record := _record(read, digest, number)) is not None:
                    return record
                del self._runs[key]
            read = self._runs[key] = await _read(client, source)
            while len(self._runs) > 1 and sum(each.size for each in self._runs.values()) > MOST_BYTES:
                self._runs.popitem(last=False)
            return _record(read, digest, number)


def _record(read: _Read, digest: str, number: int) -> RecordedOutcome | None:
    calls = read.calls.get(digest, [])
    return calls[number] if number < len(calls) else None


async def _read(client: Client, source: RecordSource) -> _Read:
    """Read all calls of a run from a step on."""
    handle = client.get_workflow_handle(source.workflow_id, run_id=source.run_id)
    steps = await read_steps(client, handle, source.step - 1, conversation=source.conversation)
    messages = await read_messages(client, handle, conversation=source.conversation)
    calls = records_of(map(Step.model_validate, steps), _MESSAGES.validate_python(messages))
    return _Read(calls, sum(len(each.text) for records in calls.values() for each in records if each))
