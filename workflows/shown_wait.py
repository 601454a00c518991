"""The wait that people are shown, of all that an agent waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

from mulligan.values import ToolCall, WaitingFor
from mulligan.wire.times import clock, iso
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.waits import Wait, WaitKind

_KINDS: tuple[WaitKind, ...] = get_args(WaitKind)
"""The kinds, in the order in which they are preferred."""


def shown_wait(waits: Iterable[Wait], key: str) -> WaitingFor | None:
    """The oldest wait of the first kind of which there is one; None: the agent works. `key`: the agent's.

    Of several points in time, the next one is shown.
    """
    with_kinds = [(kind, wait) for wait in waits if (kind := wait.kind) is not None]
    if not with_kinds:
        return None
    kind = min((each for each, _ in with_kinds), key=_KINDS.index)
    same = [wait for each, wait in with_kinds if each == kind]
    first = min(same, key=lambda wait: (wait.ends_at or 0.0) if kind == "timer" else wait.since)
    what, more = first.describe([wait for wait in same if wait is not first], key)
    until = first.ends_at
    return WaitingFor(
        kind=kind,
        since=iso(first.since),
        detail=f"{what} since {clock(first.since)}{more}",
        retried_for=first.retried_for,
        until=None if until is None else iso(until),
    )


@dataclass(kw_only=True, eq=False)
class WorkerWait(Wait):
    """A wait for a worker that serves the agent. `opens`: whether it opens the turn."""

    name: ClassVar[str] = "worker"
    ended_by: ClassVar[WaitKind | None] = "worker"
    is_carried_over: ClassVar[bool] = False

    agent: str
    opens: bool

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """Which agent has no worker."""
        del others, key
        return f"waiting for a worker that {'opens the run of' if self.opens else 'serves'} agent `{self.agent}`", ""


@dataclass(kw_only=True, eq=False)
class RunningCall(Wait):
    """A tool call that is running. `is_hidden`: whether it waits for a person meanwhile."""

    name: ClassVar[str] = "tool"
    is_carried_over: ClassVar[bool] = False

    call: ToolCall
    record: CallRecord
    is_hidden: bool = False

    @property
    def kind(self) -> WaitKind | None:
        """The kind of the wait: a tool ends it."""
        return None if self.is_hidden else "tool"

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The tool, its sub-agent's run if it has one, and the other tools."""
        del key
        run = self.record.run
        name = f"`{self.call.name}`" + (f" (run {run.id})" if run is not None and run.id else "")
        names = ", ".join(f"`{each.call.name}`" for each in others if isinstance(each, RunningCall))
        return f"running {name}", f"; also running: {names}" if names else ""


@dataclass(kw_only=True, eq=False)
class ModelWait(Wait):
    """A model that is called. `patience`: for how many seconds the call is repeated if its endpoint is down."""

    name: ClassVar[str] = "model"
    ended_by: ClassVar[WaitKind | None] = "model"
    is_carried_over: ClassVar[bool] = False

    model: str
    step: int
    patience: float

    @property
    def retried_for(self) -> float | None:
        """The patience of the call."""
        return self.patience

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The model and the step."""
        del others, key
        return f"waiting for `{self.model}` (step {self.step})", ""
