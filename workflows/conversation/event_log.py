"""What happened in a run and when: pure, but for the workflow's clock. What was said is in the conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from temporalio import workflow

if TYPE_CHECKING:
    from mulligan.values import ErrorInfo


_ASKED = ("step_started", "model_fallback")
_OF_ANSWERS = (*_ASKED, "answered", "run_ended")


class Entry(NamedTuple):
    """One thing that happened. `at`: milliseconds since 1970. `call`: which one of the step's."""

    type: str
    at: int
    step: int = 0
    call: int | None = None
    said: dict[str, Any] | None = None
    """What stands in no message."""


def _time() -> float:
    return workflow.time() if workflow.in_workflow() else 0.0


class EventLog:
    """The entries of a run from number `first` on; those before are in a run before this one."""

    def __init__(self, clock: Callable[[], float] = _time) -> None:
        self.first = 0
        self.entries: list[Entry] = []
        self._clock = clock
        self._step = 0
        """The newest step."""
        self._asked: dict[str, Any] = {}
        """What its start says: one for all that say the same."""

    @property
    def total(self) -> int:
        """How many there are in all: the offset of the next one."""
        return self.first + len(self.entries)

    @property
    def writing(self) -> Entry | None:
        """When the model was asked that has not answered yet."""
        newest = next((entry for entry in reversed(self.entries) if entry.type in _OF_ANSWERS), None)
        return newest if newest is not None and newest.type in _ASKED else None

    def run_started(self, turn: int, agent: str, model: str, max_steps: int) -> None:
        """A turn was opened."""
        self._add("run_started", said={"turn": turn, "agent": agent, "model": model, "max_steps": max_steps})

    def compacted(self, step: int) -> None:
        """The conversation was made shorter before a step, or could not be."""
        self._add("compacted", step)

    def step_started(self, step: int, model: str) -> None:
        """The model is asked."""
        self._step = step
        if self._asked.get("model") != model:
            self._asked = {"model": model}
        self._add("step_started", step, said=self._asked)

    def model_fallback(self, model: str, error: ErrorInfo | None = None) -> None:
        """The newest step's model was given up, and another one is asked."""
        self._add("model_fallback", said={"model": model, "error": error and error.model_dump()})

    def answered(self, repaired: list[int]) -> None:
        """The model answered the newest step; the calls with these places in it were repaired."""
        self._add("answered")
        for call in repaired:
            self._add("tool_call_repaired", call=call)

    def tool_call_started(self, call: int) -> None:
        """A call of the newest step runs."""
        self._add("tool_call_started", call=call)

    def tool_call_settled(self, call: int) -> None:
        """A call of the newest step has its result."""
        self._add("tool_call_settled", call=call)

    def waiting(self, call: int, kind: str, text: str = "") -> None:
        """A call of the newest step waits for a person."""
        self._add("waiting", call=call, said={"kind": kind, "text": text})

    def decided(self, call: int) -> None:
        """It waits no more."""
        self._add("decided", call=call)

    def answer_rejected(self) -> None:
        """The newest step's answer was not taken."""
        self._add("answer_rejected")

    def message(self, number: int) -> None:
        """A message joined the conversation: its number in the log of all messages."""
        self._add("message", said={"number": number})

    def stopping(self, reason: str | None = None) -> None:
        """Somebody asked the run to stop."""
        self._add("stopping", said={"reason": reason})

    def run_ended(self, turn: int, status: str, error: ErrorInfo | None = None) -> None:
        """A turn is over."""
        self._add("run_ended", said={"turn": turn, "status": status, "error": error and error.model_dump()})

    def dump(self, first_step: int) -> dict[str, Any]:
        """What continue-as-new carries: what happened from a step on."""
        start = next((n for n, entry in enumerate(self.entries) if entry.step >= first_step), len(self.entries))
        kept = self.entries[start if first_step > 1 else 0 :]
        return {"first": self.total - len(kept), "entries": [_brief(entry) for entry in kept]}

    @classmethod
    def load(cls, state: dict[str, Any], clock: Callable[[], float] = _time) -> EventLog:
        """What `dump` gave."""
        log = cls(clock)
        log.first = state["first"]
        log.entries = [Entry(*entry) for entry in state["entries"]]
        log._step = max((entry.step for entry in log.entries), default=0)
        return log

    def _add(self, kind: str, step: int | None = None, call: int | None = None, said: Any = None) -> None:
        at = round(self._clock() * 1000)
        self.entries.append(Entry(kind, at, self._step if step is None else step, call, said))


def _brief(entry: Entry) -> list[Any]:
    values = list(entry)
    while values[-1] is None:
        values.pop()
    return values
