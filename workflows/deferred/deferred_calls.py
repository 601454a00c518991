"""The calls of an agent that wait for a result from elsewhere, or for a point in time. A wait takes nothing of a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import JsonValue, TypeAdapter
from temporalio import workflow

from mulligan.values import ToolCall
from mulligan.wire.deferred_call import Complete, DeferredEnd
from mulligan.wire.tool_call import Deferral
from mulligan.wire.ui_summary import ui_summary
from mulligan.wire.updates import iso
from mulligan.workflows import limits
from mulligan.workflows.newest_that_fit import newest_that_fit

__all__ = ["DeferredCall", "DeferredCalls"]


@dataclass(kw_only=True)
class DeferredCall:
    """A call of a deferred tool, from the start of its body until it is settled. Times are seconds since the epoch.

    `started`: when its body was scheduled. `since`: when its body had returned, as `deferral`; None while it runs.
    `timeout`: seconds that it may wait after that; None: no limit.
    """

    call: ToolCall
    trace_id: str
    started: float
    timeout: float | None = None
    since: float | None = None
    deferral: Deferral | None = None
    attempts: int = 1
    completion: Complete | None = None
    completed_at: float | None = None

    @property
    def is_timer(self) -> bool:
        """Whether it waits for a point in time."""
        return self.deferral is not None and self.deferral.until is not None

    @property
    def until(self) -> float | None:
        """When its wait ends at the latest; None: never."""
        if self.deferral is not None and self.deferral.until is not None:
            return self.deferral.until
        return None if self.timeout is None or self.since is None else self.since + self.timeout

    @property
    def seconds_left(self) -> float | None:
        """The rest of the wait: at least a millisecond, as it may pass between two workflow runs."""
        return None if self.until is None else max(0.001, self.until - workflow.time())

    def started_value(self) -> JsonValue:
        """What its step shows of it."""
        assert self.since is not None
        return {
            "kind": "timer" if self.is_timer else "callback",
            "started": self.deferral.text if self.deferral else "",
            "since": iso(self.since),
            "until": iso(self.until) if self.until is not None else None,
        }


_OPEN: TypeAdapter[dict[str, DeferredCall]] = TypeAdapter(dict[str, DeferredCall])


class DeferredCalls:
    """The deferred calls of one agent, by call id."""

    def __init__(self) -> None:
        self.open: dict[str, DeferredCall] = {}
        self.stopped: set[str] = set()
        """Ids of the calls that a request to stop has ended: the model never reads their results."""
        self._settled: dict[str, str] = {}
        """How calls that were open have ended, as the end of a sentence."""
        self._carried: set[str] = set()
        """Ids of calls that waited in the workflow run before this one, and are not waited for yet in this one."""
        self._continue_as_new: Callable[[], NoReturn] | None = None

    @property
    def waiting(self) -> list[DeferredCall]:
        """The calls whose body has returned, and that nothing has ended yet."""
        return [each for each in self.open.values() if each.since is not None and each.completion is None]

    def carried(self, call_id: str) -> DeferredCall | None:
        """A call that waited in the workflow run before this one."""
        return self.open[call_id] if call_id in self._carried else None

    def continue_as_new(self, leave: Callable[[], NoReturn]) -> None:
        """End each wait by calling `leave`, which raises the SDK's ContinueAsNewError."""
        self._continue_as_new = leave

    async def wait_for(self, one: DeferredCall, is_interrupted: Callable[[], DeferredEnd | None]) -> DeferredEnd:
        """Wait for the end of a call. `is_interrupted`: what ends it early.

        Raises:
            CancelledError: the workflow is cancelled.
        """
        self._carried.discard(one.call.id)
        summary = f"{'end of' if one.is_timer else 'time limit of'} {one.call.name}"
        is_over = False
        try:
            await workflow.wait_condition(
                lambda: one.completion is not None or self._continue_as_new is not None or is_interrupted() is not None,
                timeout=one.seconds_left,
                timeout_summary=ui_summary(summary),
            )
        except TimeoutError:
            is_over = True
        if self._continue_as_new is not None:
            self._continue_as_new()
        # A completion in the same moment was already accepted.
        if one.completion is not None:
            return "error" if one.completion.is_error else "result"
        if is_over:
            return "time" if one.is_timer else "timeout"
        return is_interrupted() or "cancelled"

    def settle(self, one: DeferredCall, how: str) -> None:
        """The call has its result. `how`: the end of the sentence that refuses a later completion."""
        self.open.pop(one.call.id, None)
        settled = [*self._settled.items(), (one.call.id, f"{how} at {iso(workflow.time())}")]
        self._settled = dict(settled[-limits.DECISIONS_KEPT :])

    def settled(self, call_id: str) -> str | None:
        """How a deferred call has ended; None if there was none with this id."""
        return self._settled.get(call_id)

    def dump(self) -> dict[str, Any]:
        """What continue-as-new carries, as JSON: the calls that wait, and how the newest of the others have ended."""
        state: dict[str, Any] = {}
        if self.open:
            state["open"] = _OPEN.dump_python(self.open, mode="json", exclude_none=True)
        if settled := newest_that_fit(self._settled, limits.DECISIONS_CARRIED_BYTES):
            state["settled"] = settled
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Continue with what `dump` returned."""
        self.open = _OPEN.validate_python(state.get("open", {}))
        self._carried = set(self.open)
        self._settled = dict(state.get("settled", {}))
