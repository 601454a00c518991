"""The events of a run and their times. What is in a message is not repeated here: event_page.py puts both together.

It is pure, but reads the workflow's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from temporalio import workflow

from mulligan.values import Decision, ErrorInfo

_MODEL_CALLED = ("step_started", "model_fallback")
_MODEL_CALLED_OR_ENDED = (*_MODEL_CALLED, "answered", "run_ended")


class Entry(NamedTuple):
    """One event. `at`: milliseconds since 1970. `call`: the index of the call in its step.

    Continue-as-new carries it as a JSON array, so the order of the fields is part of Temporal's history.
    """

    type: str
    at: int
    step: int = 0
    call: int | None = None
    data: dict[str, Any] | None = None
    """Fields of the event that no message contains."""


def _time() -> float:
    return workflow.time() if workflow.in_workflow() else 0.0


class EventLog:
    """The events of a conversation, from number `first` on; an earlier run of the chain has those before."""

    def __init__(self, clock: Callable[[], float] = _time) -> None:
        self.first = 0
        self.entries: list[Entry] = []
        self._clock = clock
        self._step = 0
        """The number of the newest step."""
        self._model: dict[str, Any] = {}
        """The data of the newest `step_started`: one object for all steps of a model, to save memory."""

    @property
    def total(self) -> int:
        """The number of all events, those of earlier runs included: the offset of the next one."""
        return self.first + len(self.entries)

    @property
    def newest_step(self) -> int:
        """The number of the newest step; 0 before the first."""
        return self._step

    def offsets_of(self, step: int) -> tuple[int, int]:
        """The offset of a step's first event, and of the first one after it: what comes between two steps belongs to the
        former. A compaction belongs to the step that follows it. -1: an earlier run has the step.
        """
        steps = [entry.step for entry in self.entries]
        if self.first and (not steps or steps[0] > step):
            return -1, -1
        start = next((n for n, each in enumerate(steps) if each >= step), len(steps))
        end = next((n for n in range(start, len(steps)) if steps[n] > step), len(steps))
        return self.first + start, self.first + end

    @property
    def writing(self) -> Entry | None:
        """The start of the model call that has not been answered yet; None if the model is not being called."""
        newest = next((entry for entry in reversed(self.entries) if entry.type in _MODEL_CALLED_OR_ENDED), None)
        return newest if newest is not None and newest.type in _MODEL_CALLED else None

    @property
    def fallbacks(self) -> int:
        """How many models of the newest step have failed."""
        count = 0
        for entry in reversed(self.entries):
            if entry.type == "step_started":
                break
            count += entry.type == "model_fallback"
        return count

    def run_started(self, turn: int, agent: str, model: str, max_steps: int) -> None:
        """Add the event that a turn was opened."""
        self._add("run_started", data={"turn": turn, "agent": agent, "model": model, "max_steps": max_steps})

    def compacted(self, step: int) -> None:
        """The conversation was compacted before a step, or the compaction failed."""
        self._add("compacted", step)

    def step_started(self, step: int, model: str) -> None:
        """Add the event that the model is called."""
        self._step = step
        if self._model.get("model") != model:
            self._model = {"model": model}
        self._add("step_started", step, data=self._model)

    def model_fallback(self, model: str, error: ErrorInfo) -> None:
        """The newest step's model failed, and another one is called."""
        self._add("model_fallback", data={"model": model, "error": error.model_dump()})

    def answered(self, repaired: list[int]) -> None:
        """The model answered; `repaired` are the indexes of the calls that were repaired."""
        self._add("answered")
        for call in repaired:
            self.tool_call_repaired(call)

    def tool_call_repaired(self, call: int) -> None:
        """The name or the arguments of a call of the newest step were repaired."""
        self._add("tool_call_repaired", call=call)

    def tool_call_started(self, call: int) -> None:
        """A call of the newest step started to run."""
        self._add("tool_call_started", call=call)

    def tool_call_settled(self, call: int) -> None:
        """A call of the newest step has its result."""
        self._add("tool_call_settled", call=call)

    def tool_call_deferred(self, call: int) -> None:
        """A deferred tool has returned, and its call waits for the result."""
        self._add("tool_call_deferred", call=call)

    def handed_over(self, call: int, before: str, agent: str, model: str) -> None:
        """A call of the newest step has handed the conversation over. `model`: that is called next."""
        self._add("handed_over", call=call, data={"from_agent": before, "agent": agent, "model": model})

    def waiting(self, call: int, kind: str, text: str = "") -> None:
        """A call of the newest step waits for a person."""
        self._add("waiting", call=call, data={"kind": kind, "text": text})

    def reminder(self, call: int, kind: str, text: str, number: int, *, is_edited: bool = False) -> None:
        """A call of the newest step still waits for a person. `is_edited`: its text has other arguments than the model's."""
        edited = {"edited": True} if is_edited else {}
        self._add("reminder", call=call, data={"kind": kind, "text": text, "number": number, **edited})

    def edited(self, call: int, text: str, role: str, by: str | None, reason: str | None) -> None:
        """A person has edited the arguments of a call of the newest step, which waits on for somebody with a role."""
        self._add("edited", call=call, data={"text": text, "role": role, "by": by, "reason": reason})

    def decided(self, call: int, decision: Decision | None = None) -> None:
        """A call of the newest step no longer waits for a person.

        `decision`: of a question of the call's MCP server, which may ask several. Others are in the call's record.
        """
        data = decision.model_dump(include={"decision", "by", "reason"}) if decision is not None else None
        self._add("decided", call=call, data=data)

    def answer_rejected(self) -> None:
        """The newest step's answer was rejected."""
        self._add("answer_rejected")

    def message(self, number: int) -> None:
        """A person's message was added to the conversation. `number`: its number in the log of all messages."""
        self._add("message", data={"number": number})

    def stopping(self, reason: str | None = None) -> None:
        """Somebody requested the run to stop."""
        self._add("stopping", data={"reason": reason})

    def run_ended(self, turn: int, status: str, error: ErrorInfo | None = None) -> None:
        """Add the event that a turn is over."""
        self._add("run_ended", data={"turn": turn, "status": status, "error": error and error.model_dump()})

    def dump(self, first_step: int) -> dict[str, Any]:
        """What continue-as-new carries: the events from the start of a step on."""
        start = next((n for n, entry in enumerate(self.entries) if entry.step >= first_step), len(self.entries))
        entries = self.entries[start if first_step > 1 else 0 :]
        return {"first": self.total - len(entries), "entries": [_without_trailing_nones(entry) for entry in entries]}

    @classmethod
    def load(cls, state: dict[str, Any], clock: Callable[[], float] = _time) -> EventLog:
        """The log that `dump` returned."""
        log = cls(clock)
        log.first = state["first"]
        log.entries = [Entry(*entry) for entry in state["entries"]]
        log._step = max((entry.step for entry in log.entries), default=0)
        return log

    def _add(self, kind: str, step: int | None = None, call: int | None = None, data: Any = None) -> None:
        at = round(self._clock() * 1000)
        self.entries.append(Entry(kind, at, self._step if step is None else step, call, data))


def _without_trailing_nones(entry: Entry) -> list[Any]:
    values = list(entry)
    while values[-1] is None:
        values.pop()
    return values
