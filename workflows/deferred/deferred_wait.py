"""A call that waits for a result from elsewhere, or for a point in time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue
from temporalio import workflow

from mulligan.values import ToolCall
from mulligan.wire.deferred import Complete
from mulligan.wire.times import iso
from mulligan.wire.tool_call import Deferral
from mulligan.workflows.waits import Wait, WaitKind


@dataclass(kw_only=True, eq=False)
class DeferredWait(Wait):
    """A call of a deferred tool, from the start of its body until it is settled. Its key is the call's id.

    Times are seconds since the epoch. `started`: when its body was scheduled. `since`: when its body had returned, as
    `deferral`; before that, the same as `started`. `timeout`: seconds that it may wait after that; None: no limit.
    """

    name: ClassVar[str] = "deferred"

    call: ToolCall
    trace_id: str
    started: float
    timeout: float | None = None
    deferral: Deferral | None = None
    attempts: int = 1
    completion: Complete | None = None
    completed_at: float | None = None

    @property
    def kind(self) -> WaitKind | None:
        """A callback ends it, or a point in time."""
        if self.deferral is None or self.completion is not None:
            return None
        return "timer" if self.is_timer else "callback"

    @property
    def is_over(self) -> bool:
        """Whether its result has come."""
        return self.completion is not None

    @property
    def is_timer(self) -> bool:
        """Whether it waits for a point in time."""
        return self.deferral is not None and self.deferral.until is not None

    @property
    def ends_at(self) -> float | None:
        """When its wait ends at the latest."""
        if self.deferral is None:
            return None
        if self.deferral.until is not None:
            return self.deferral.until
        return None if self.timeout is None else self.since + self.timeout

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The call, and the command that completes it; or the point in time."""
        del key
        if self.is_timer:
            return f"`{self.call.name}` waits until {iso(self.ends_at or 0)}", ""
        more = f" (and {len(others)} more)" if others else ""
        run_id, call_id = shlex.quote(workflow.info().workflow_id), shlex.quote(self.call.id)
        return (
            f"waiting for the result of `{self.call.name}`",
            f": mulligan complete {run_id} {call_id} --result JSON{more}",
        )

    def started_value(self) -> JsonValue:
        """The value that its step shows of it."""
        return {
            "kind": "timer" if self.is_timer else "callback",
            "started": self.deferral.text if self.deferral else "",
            "since": iso(self.since),
            "until": iso(self.ends_at) if self.ends_at is not None else None,
        }
