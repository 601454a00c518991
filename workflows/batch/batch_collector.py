"""`MulliganBatchCollector`: gathers the requests of many runs to one model, and starts a batch when a file is full."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.workflow import ParentClosePolicy

from mulligan.wire.batch import (
    ADD_CALL,
    BATCH_COLLECTOR,
    BATCH_WORKFLOW,
    REMOVE_CALL,
    AddCall,
    BatchedCall,
    BatchInput,
    CollectorState,
    GatherLimits,
)
from mulligan.wire.read_payload import read_payloads
from mulligan.workflows import limits


@workflow.defn(name=BATCH_COLLECTOR, sandboxed=False)
class BatchCollector:
    """Collects the requests of one task queue and model, as keys and digests; their texts are in the storage."""

    def __init__(self) -> None:
        self._calls: dict[str, BatchedCall] = {}
        self._bytes = self._listed = 0
        """Of all requests, and of their list as JSON, which must fit into one input."""
        self._limits = GatherLimits(count=1_000, bytes=50_000_000, seconds=60, poll=30)
        self._since: float | None = None
        self._batches = self._signals = 0
        workflow.set_signal_handler(ADD_CALL, self._add)
        workflow.set_signal_handler(REMOVE_CALL, self._remove)

    @workflow.run
    async def run(self, start: RawValue) -> None:
        """Gather requests until none has come for an hour."""
        [state] = read_payloads(workflow.payload_converter(), [start.payload], [CollectorState])
        later, self._calls, self._bytes, self._listed = self._calls, {}, 0, 0
        for call in [*state.calls, *later.values()]:
            self._keep(call)
        self._limits = state.limits if state.limits and not later else self._limits
        self._since = state.since or self._since
        self._batches = state.batches
        while True:
            if not await self._until_due():
                return
            while self._calls and self._is_due():  # until the rest can be carried
                await self._start_batch(state.model)
            if self._signals >= limits.COLLECTOR_SIGNALS or workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._state(state.model))

    async def _until_due(self) -> bool:
        """Wait until a file is full or old enough. False: no request has come for long, so the collector may end."""
        seconds = limits.COLLECTOR_IDLE if self._since is None else self._since + self._limits.seconds - workflow.time()
        before = self._since
        try:
            await workflow.wait_condition(
                lambda: self._is_full() or self._since != before or self._signals >= limits.COLLECTOR_SIGNALS,
                timeout=max(0.001, seconds),
            )
        except TimeoutError:
            return bool(self._calls)
        return True

    def _is_full(self) -> bool:
        return (
            len(self._calls) >= self._limits.count
            or self._bytes >= self._limits.bytes
            or self._listed >= limits.BATCH_INPUT_BYTES
        )

    def _is_due(self) -> bool:
        return self._is_full() or (self._since or 0) + self._limits.seconds <= workflow.time()

    async def _start_batch(self, model: str) -> None:
        """Start the workflow of a batch with the oldest requests that fit into a file. It lives on without the collector."""
        taken: list[BatchedCall] = []
        size = listed = 0
        for call in self._calls.values():
            size, listed = size + call.size, listed + _listed(call)
            is_too_much = size > self._limits.bytes or listed > limits.BATCH_INPUT_BYTES
            if taken and (is_too_much or len(taken) >= self._limits.count):
                break
            taken.append(call)
        for call in taken:
            self._drop(call.key)
        self._since = workflow.time() if self._calls else None
        self._batches += 1
        info = workflow.info()
        name = f"{info.first_execution_run_id}-{self._batches}"
        await workflow.start_child_workflow(
            BATCH_WORKFLOW,
            BatchInput(model=model, name=name, calls=taken, poll=self._limits.poll),
            id=f"{info.workflow_id}/{name}",
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"{len(taken)} requests to {model}",
        )

    def _state(self, model: str) -> CollectorState:
        return CollectorState(
            model=model,
            calls=list(self._calls.values()),
            limits=self._limits,
            since=self._since,
            batches=self._batches,
        )

    def _add(self, argument: Any = None) -> None:
        self._signals += 1
        try:
            added = AddCall.model_validate(argument)
        except ValidationError:
            return
        self._limits = added.limits
        self._keep(added.call)
        self._since = self._since or workflow.time()

    def _remove(self, key: Any = None) -> None:
        self._signals += 1
        if isinstance(key, str) and self._drop(key) and not self._calls:
            self._since = None

    def _keep(self, call: BatchedCall) -> None:
        if call.key not in self._calls:
            self._calls[call.key] = call
            self._bytes, self._listed = self._bytes + call.size, self._listed + _listed(call)

    def _drop(self, key: str) -> bool:
        """Forget a request. Returns whether it was there."""
        call = self._calls.pop(key, None)
        if call is not None:
            self._bytes, self._listed = self._bytes - call.size, self._listed - _listed(call)
        return call is not None


def _listed(call: BatchedCall) -> int:
    """The bytes of a request in a list of requests."""
    return len(call.model_dump_json().encode()) + 1
