"""The calls of earlier runs with their results, as far as this worker has read them for forks."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus

from mulligan.client.read_run import read_messages, read_steps
from mulligan.once import call_digest
from mulligan.values import StepCall, ToolMessage
from mulligan.wire.recorded_tools import RecordSource

LONG_ARGUMENTS = 2_000
"""Characters of arguments up to which a step of any size has them whole, but for a step of a hundred calls."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of results in memory. Of the run that was read last, all are there."""


@dataclass(frozen=True)
class CallRecord:
    """What a call had. `outcome`: fields of `FoundRecord`; None where the call has no result."""

    outcome: dict[str, Any] | None


@dataclass
class _Read:
    """The calls of a run by their digests, in their order; the bytes of their texts; whether more calls may follow."""

    is_open: bool
    calls: dict[str, list[CallRecord]] = field(default_factory=lambda: defaultdict(list))
    size: int = 0


@dataclass
class _Source:
    """What was read of a run, by one reader at a time; None: nothing yet."""

    read: _Read | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CallRecords:
    """The calls that were read. It keeps those of the runs that were used last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[Any, ...], _Source] = OrderedDict()

    async def find(self, client: Client, source: RecordSource, digest: str, number: int) -> CallRecord | None:
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


def _record(read: _Read, digest: str, number: int) -> CallRecord | None:
    calls = read.calls.get(digest, [])
    return calls[number] if number < len(calls) and calls[number].outcome is not None else None


async def _read(client: Client, source: RecordSource) -> _Read:
    """Read all calls of a run from a step on. Steps say which calls were valid; only messages have long texts whole."""
    handle = client.get_workflow_handle(source.workflow_id, run_id=source.run_id)
    described = await handle.describe()  # before its steps: it may end while they are read
    steps = await read_steps(client, handle, source.step - 1, conversation=source.conversation)
    messages = await read_messages(client, handle, conversation=source.conversation)
    written, results = _calls_of(messages), _results_of(messages)
    read = _Read(is_open=described.status == WorkflowExecutionStatus.RUNNING)
    for step in steps:
        for call in map(StepCall.model_validate, step["tool_calls"]):
            if call.arguments is None:
                continue
            name, arguments = call.name, call.arguments
            if len(text := written.get(call.id, "")) > LONG_ARGUMENTS:  # the step's may be cut
                arguments = json.loads(text)
            # The results of a step that is open are in no message yet.
            result, decision = results.get(call.id) or call.result, call.decision
            before = decision.before if decision is not None and decision.edited else arguments
            outcome = (
                None
                if result is None
                else {
                    "found": True,
                    "text": result.text,
                    "error": result.error,
                    "content": result.content,
                    "decision": decision,
                    "untrusted": call.result is not None and call.result.trust is not None,
                    "edited": arguments if decision is not None and decision.edited else None,
                }
            )
            read.calls[call_digest(name, before)[:16]].append(CallRecord(outcome))
            read.size += len(result.text) if result else 0
    return read


def _calls_of(messages: list[dict[str, Any]]) -> dict[str, str]:
    """The arguments of each call by its id, as text."""
    calls = (call for each in messages if each["role"] == "assistant" for call in each.get("tool_calls") or ())
    return {call["id"]: call["arguments"] for call in calls}


def _results_of(messages: list[dict[str, Any]]) -> dict[str, ToolMessage]:
    return {each["call_id"]: ToolMessage.model_validate(each) for each in messages if each["role"] == "tool"}
