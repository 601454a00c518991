"""What an agent waits for: one registry, which is shown to people, carried over continue-as-new, and ended by a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

from pydantic import TypeAdapter
from temporalio import workflow

from mulligan.wire.updates import Stop
from mulligan.workflows import limits
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.newest_that_fit import newest_that_fit

WaitKind = Literal["worker", "tool", "person", "callback", "timer", "model"]


@dataclass(kw_only=True, eq=False)
class Wait:
    """Something that an agent waits for. A feature has its own class of waits, with what it needs to go on.

    `key`: unique among the agent's waits of that class, such as the id of a call. `since`: seconds since the epoch.
    """

    name: ClassVar[str]
    """The class of waits, in the state that is carried over."""
    is_carried_over: ClassVar[bool] = True
    """Whether the next workflow run needs it to go on."""
    leaves_first: ClassVar[bool] = False
    """Whether the run may continue as new although what is waited for has come: the next workflow run goes on with it."""
    ended_by: ClassVar[WaitKind | None] = None
    """Who or what ends a wait of this class, unless it says so itself (`kind`)."""

    key: str
    since: float = field(default_factory=workflow.time)

    @property
    def kind(self) -> WaitKind | None:
        """Who or what ends the wait; None: the wait is not shown."""
        return self.ended_by

    @property
    def is_over(self) -> bool:
        """Whether what is waited for has come."""
        return False

    @property
    def may_leave(self) -> bool:
        """Whether the run may continue as new meanwhile: nothing else of it is open."""
        return True

    @property
    def ends_at(self) -> float | None:
        """When it ends at the latest, as people are shown, in seconds since the epoch; None: there is no such time."""
        return None

    @property
    def retried_for(self) -> float | None:
        """The seconds for which an endpoint that is down is called again; None: it waits for no endpoint."""
        return None

    @property
    def attempt(self) -> int | None:
        """The attempt of a model call whose text counts; None: the newest that wrote some."""
        return None

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """Describe what is waited for: the sentence before "since 12:04 UTC", and what follows.

        Args:
            others: The further waits of the same kind.
            key: The agent's, in its workflow.
        """
        raise NotImplementedError

    def stop(self, stop: Stop) -> None:
        """The run is to stop. A wait that goes on until its feature has looked at that does nothing here."""


W = TypeVar("W", bound=Wait)


class Waits:
    """The waits of one agent. It exists before its agent does, as updates may arrive before.

    `listed`: what lists show of the waits of all agents of the workflow.
    """

    def __init__(self, listed: ListedWaits) -> None:
        self._listed = listed
        self.open: dict[tuple[str, str], Wait] = {}
        """The waits by name and key, the oldest first."""
        self.abandoned: list[Wait] = []
        """Those for people that ended without a decision, as the run was cancelled or has failed."""
        self.are_over = False
        """Whether the step was cut short, so that nothing may wait any more."""
        self.is_due: Callable[[], bool] = lambda: False
        """Whether the run is to continue as new, if the agent only waits. It changes nothing."""
        self.leave: Callable[[], Callable[[], NoReturn] | None] = lambda: None
        """Called when it is: returns what continues the run as new; None if its state is too large, and not due then."""
        self.open_threads: Callable[[], int] = lambda: 0
        """The number of things that the agent does side by side."""
        self._ended: dict[tuple[str, str], str] = {}
        self._carried: set[tuple[str, str]] = set()
        self._idle: dict[tuple[str, str], Callable[[], bool]] = {}
        """The waits that are waited for at this moment, each with the function that says whether it is over."""
        self._leave: Callable[[], NoReturn] | None = None

    def of(self, kind: type[W]) -> list[W]:
        """The open waits of a class, the oldest first."""
        return [wait for wait in self.open.values() if isinstance(wait, kind)]

    def find(self, kind: type[W], key: str) -> W | None:
        """The open wait of a class with a key."""
        wait = self.open.get((kind.name, key))
        return wait if isinstance(wait, kind) else None

    def carried(self, kind: type[W], key: str = "") -> W | None:
        """A wait of the workflow run before this one that nobody has entered again."""
        return self.find(kind, key) if (kind.name, key) in self._carried else None

    def is_waiting(self, key: str) -> bool:
        """Whether something with a key is waited for at this moment."""
        return any(each == key for _, each in self._idle)

    def is_carried(self, key: str) -> bool:
        """Whether something with a key was waited for in the workflow run before this one, and is not waited for yet."""
        return any(each == key for _, each in self._carried)

    @contextmanager
    def entered(self, wait: W) -> Iterator[W]:
        """Register a wait for the time of the block."""
        at = (wait.name, wait.key)
        is_new = at not in self._carried
        self._carried.discard(at)
        self.open[at] = wait
        if is_new:
            self.kinds_changed()
        is_interrupted = True
        try:
            yield wait
            is_interrupted = False
        finally:
            if self._leave is None or not is_interrupted:
                del self.open[at]
                if is_interrupted and not wait.is_over and wait.kind == "person":
                    self.abandoned.append(wait)
        self.kinds_changed()

    def kinds_changed(self) -> None:
        """Update the status that lists of runs show, if a changed kind of wait means another one."""
        self._listed.update()

    async def until(
        self, wait: Wait, is_over: Callable[[], bool], *, at: float | None = None, summary: str | None = None
    ) -> bool:
        """Wait until `is_over`. Returns False if `at` came before that. It uses no resources of a worker.

        Args:
            wait: The wait, which has been entered.
            is_over: Whether to wait no longer.
            at: A point in time in seconds since the epoch; None: there is no limit.
            summary: What Temporal's UI shows of the timer.

        Raises:
            ContinueAsNewError: the run continues as new meanwhile.
            CancelledError: the step was cut short before.
        """
        if self.are_over:
            raise asyncio.CancelledError
        key = (wait.name, wait.key)
        self.kinds_changed()
        self._idle[key] = is_over
        is_in_time = True
        try:
            while self._goes_on(wait, is_over) and self._leave is None and is_in_time:
                if self._is_due():
                    self._leave = self.leave()
                else:
                    is_in_time = await self._sleep(is_over, at, summary)
        finally:
            del self._idle[key]
        if self._leave is not None:
            self._leave()
        # What came in the same moment as the timer was accepted.
        return is_in_time or is_over()

    def _goes_on(self, wait: Wait, is_over: Callable[[], bool]) -> bool:
        return not is_over() or (wait.leaves_first and self._is_due())

    async def _sleep(self, is_over: Callable[[], bool], at: float | None, summary: str | None) -> bool:
        # At least a millisecond, as the time may have come between two workflow runs.
        left = None if at is None else max(0.001, at - workflow.time())
        try:
            await workflow.wait_condition(
                lambda: is_over() or self._leave is not None or self._is_due(), timeout=left, timeout_summary=summary
            )
        except TimeoutError:
            return False
        return True

    def _is_due(self) -> bool:
        """Whether everything that the agent does waits for what has not come, and the run is to continue as new."""
        return (
            self.is_due()
            and len(self._idle) == self.open_threads()
            and all(
                self.open[key].may_leave and (self.open[key].leaves_first or not is_over())
                for key, is_over in self._idle.items()
            )
        )

    def stop(self, stop: Stop) -> None:
        """Tell all waits that the run is to stop."""
        for wait in [*self.open.values()]:
            wait.stop(stop)

    def remember(self, wait: Wait, how: str) -> None:
        """Remember how a wait has ended, for the sentence that refuses a late reply."""
        self._ended[wait.name, wait.key] = how
        if len(self._ended) > limits.DECISIONS_KEPT:
            del self._ended[next(iter(self._ended))]

    def how_ended(self, kind: type[Wait], key: str) -> str | None:
        """How a wait has ended; None: it has not, or there was none."""
        return self._ended.get((kind.name, key))

    def dump(self) -> dict[str, Any]:
        """The state that continue-as-new carries, as JSON: the open waits, and how the newest others have ended."""
        state: dict[str, Any] = {}
        for wait in self.open.values():
            if wait.is_carried_over:
                dumped = _adapter(type(wait)).dump_python(wait, mode="json", exclude_none=True)
                state.setdefault(wait.name, []).append(dumped)
        ended = {f"{name} {key}": how for (name, key), how in self._ended.items()}
        if carried := newest_that_fit(ended, limits.DECISIONS_CARRIED_BYTES):
            state[""] = carried
        return state

    def load(self, state: Mapping[str, Any], kinds: Mapping[str, type[Wait]]) -> None:
        """Continue with what `dump` returned. `kinds`: the classes of waits by their names."""
        for name, dumped in state.items():
            if name:
                for each in dumped:
                    wait = _adapter(kinds[name]).validate_python(each)
                    self.open[name, wait.key] = wait
        self._carried = set(self.open)
        for names, how in state.get("", {}).items():
            name, _, key = names.partition(" ")
            self._ended[name, key] = how


_ADAPTERS: dict[type[Wait], TypeAdapter[Any]] = {}


def _adapter(kind: type[Wait]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
