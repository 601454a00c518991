"""The calls of earlier runs with their results, as far as this worker has read them for forks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client

from mulligan.client.read_run import read_messages, read_steps
from mulligan.once import call_digest
from mulligan.values import StepCall, ToolMessage
from mulligan.wire.recorded_tools import RecordSource

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of results in memory. Of the run that was read last, all are there."""


@dataclass(frozen=True)
class CallRecord:
    """What a call had. `outcome`: fields of `FoundRecord`; None where the call has no result."""

    outcome: dict[str, Any] | None


@dataclass
class _Read:
    """The calls of a run by their digests, in their order; and the bytes of their texts."""

    calls: dict[str, list[CallRecord]] = field(default_factory=lambda: defaultdict(list))
    size: int = 0


class CallRecords:
    """The calls that were read. It keeps those of the runs that were used last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[Any, ...], _Read] = OrderedDict()
        self._lock = asyncio.Lock()

    async def find(self, client: Client, source: RecordSource, digest: str, number: int) -> CallRecord | None:
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


def _record(read: _Read, digest: str, number: int) -> CallRecord | None:
    calls = read.calls.get(digest, [])
    return calls[number] if number < len(calls) and calls[number].outcome is not None else None


async def _read(client: Client, source: RecordSource) -> _Read:
    """Read all calls of a run from a step on."""
    handle = client.get_workflow_handle(source.workflow_id, run_id=source.run_id)
    steps = await read_steps(client, handle, source.step - 1, conversation=source.conversation)
    outer = [StepCall.model_validate(call) for step in steps for call in step["tool_calls"]]
    calls = [each for call in outer for each in (call, *call.calls)]
    contents: dict[str, ToolMessage] = {}
    if any(call.result is not None and call.result.content for call in calls):
        # Steps have no bytes of content.
        messages = await read_messages(client, handle, conversation=source.conversation)
        tool_messages = [ToolMessage.model_validate(each) for each in messages if each["role"] == "tool"]
        contents = {each.call_id: each for each in tool_messages}
    read = _Read()
    for call in calls:
        if call.arguments is not None:
            decision = call.decision
            is_edited = decision is not None and decision.edited
            arguments = decision.before if decision is not None and is_edited else call.arguments
            digest = call_digest(call.name, arguments)[:16]
            read.calls[digest].append(CallRecord(_outcome(call, contents.get(call.id), is_edited=is_edited)))
            read.size += len(call.result.text) if call.result else 0
    return read


def _outcome(call: StepCall, message: ToolMessage | None, *, is_edited: bool) -> dict[str, Any] | None:
    if call.result is None:
        return None
    return {
        "found": True,
        "text": call.result.text,
        "error": call.result.error,
        "content": message.content if message else None,
        "decision": call.decision,
        "edited": call.arguments if is_edited else None,
    }
