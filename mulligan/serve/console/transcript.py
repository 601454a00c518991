"""A run's stored events as a person reads them: steps with their calls, and what happens between the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mulligan.prices import Price
from mulligan.values import ErrorInfo, Repair, StepResult, SubRun, Usage
from mulligan.wire.event_types import (
    Answered,
    AnswerRejected,
    Compacted,
    Decided,
    Event,
    MessageReceived,
    ModelFallback,
    Reminder,
    RunEnded,
    RunStarted,
    StepStarted,
    Stopping,
    ToolCallDeferred,
    ToolCallRepaired,
    ToolCallSettled,
    ToolCallStarted,
    Waiting,
)

__all__ = ["CallView", "Entry", "Note", "PriceOf", "StepView", "Transcript"]

DENIED = "denied"
"""The kind of a call's error where a person, or the guard, refused it: that is no mistake of the model."""


@dataclass
class Wait:
    """A time for which a call waited for a person. `decided`: what ended it."""

    asked: Waiting
    decided: Decided | None = None
    reminders: int = 0
    """How often people were reminded of it."""


@dataclass
class CallView:
    """A call of a step, with everything that happened to it."""

    id: str
    name: str
    step: int
    raw: str
    """The arguments as the model wrote them."""
    number: int = 0
    """Its number in the step, from 1."""
    prefix: str = ""
    """What the ids of its run begin with, in a page with several runs."""
    arguments: Any = None
    """The validated ones."""
    repairs: list[Repair] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    started: datetime | None = None
    deferred: ToolCallDeferred | None = None
    """What it waits, or waited, for after its tool had returned."""
    settled: datetime | None = None
    result: StepResult | None = None
    attempts: int = 0
    run: SubRun | None = None
    corrects: CallView | None = None
    """The mistake that this call corrects."""
    corrected_by: CallView | None = None
    page: int | None = None
    """The number of its page of steps, if that is another one."""

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        return f"{self.prefix}step-{self.step}-call-{self.number}"

    @property
    def link(self) -> str:
        """Where it is, from the page that refers to it."""
        return f"{_query(self.page)}#{self.anchor}"

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed."""
        return self.result.error if self.result else None

    @property
    def is_mistake(self) -> bool:
        """Whether it failed, other than by a person's decision."""
        return self.error is not None and self.error.kind != DENIED

    @property
    def open_wait(self) -> Wait | None:
        """What it waits for now."""
        return next((wait for wait in self.waits if wait.decided is None), None) if not self.settled else None


@dataclass
class StepView:
    """A model call and the calls of its answer."""

    number: int
    model: str
    started: datetime
    answered: datetime | None = None
    text: str = ""
    usage: Usage | None = None
    cost: float | None = None
    calls: dict[str, CallView] = field(default_factory=dict)
    rejected: ErrorInfo | None = None
    corrected_in: StepView | None = None
    """The step after a rejected answer."""
    page: int | None = None
    """The number of its page of steps, if that is another one."""
    compaction: Compacted | None = None
    fallbacks: list[ModelFallback] = field(default_factory=list)
    prefix: str = ""
    kind: str = "step"

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        return f"{self.prefix}step-{self.number}"

    @property
    def link(self) -> str:
        """Where it is, from the page that refers to it."""
        return f"{_query(self.page)}#{self.anchor}"

    @property
    def is_mistaken(self) -> bool:
        """Whether anything in it failed."""
        return self.rejected is not None or any(call.is_mistake for call in self.calls.values())

    @property
    def first_failure(self) -> str | None:
        """The id in the page of what failed first in it, a call that a person denied included; None: nothing did."""
        if self.rejected is not None:
            return f"{self.anchor}-rejected"
        return next((call.anchor for call in self.calls.values() if call.error), None)

    @property
    def ended(self) -> datetime | None:
        """When its last call was settled; None while it is open."""
        if self.answered is None or any(call.settled is None for call in self.calls.values()):
            return None
        return max([self.answered, *(call.settled for call in self.calls.values() if call.settled)])


@dataclass
class Note:
    """Something between steps: `kind` is the type of its event."""

    kind: str
    event: Event
    prefix: str = ""

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        return f"{self.prefix}event-{getattr(self.event, 'offset', 0)}"


Entry = StepView | Note
PriceOf = Callable[[str], Price | None]


class Transcript:
    """The steps and notes of a run, in their order, as its events are added.

    `price_of`: a model's price, for the cost of steps. `prefix`: what the ids of its entries begin with.
    """

    def __init__(self, price_of: PriceOf = lambda model: None, prefix: str = "") -> None:  # noqa: ARG005
        self.entries: list[Entry] = []
        self._steps: dict[int, StepView] = {}
        self._price_of, self._prefix = price_of, prefix
        self._compaction: Compacted | None = None

    @classmethod
    def of(
        cls,
        events: Iterable[Event],
        price_of: PriceOf = lambda model: None,  # noqa: ARG005
        prefix: str = "",
    ) -> Transcript:
        """The transcript of these events."""
        transcript = cls(price_of, prefix)
        for event in events:
            transcript.add(event)
        transcript.link_corrections()
        return transcript

    @property
    def steps(self) -> list[StepView]:
        """The steps alone."""
        return list(self._steps.values())

    def keep(self, first: int, last: int, page_of: Callable[[int], int]) -> None:
        """Leave out the steps of other pages. What refers to them keeps a link. `page_of`: the page of a step."""
        for step in self.steps:
            if not first <= step.number <= last:
                step.page = page_of(step.number)
                for call in step.calls.values():
                    call.page = step.page
                del self._steps[step.number]
        self.entries = [each for each in self.entries if isinstance(each, Note) or each.number in self._steps]

    def forget_before(self, number: int) -> None:
        """Leave out the steps before the one with this number, and all notes."""
        self._steps = {step.number: step for step in self.steps if step.number >= number}
        self.entries = list(self._steps.values())

    def add(self, event: Event) -> Entry | None:
        """Add an event, and return the entry that it changed; None: it belongs to a step that is not here."""
        match event:
            case RunStarted() | MessageReceived() | Stopping() | RunEnded():
                return self._note(event.type, event)
            case Compacted():
                self._compaction = event
                return None
            case StepStarted():
                return self._begin(event)
        step = self._steps.get(getattr(event, "step", 0))
        if step is not None:
            self._change(step, event)
        return step

    def _note(self, kind: str, event: Event) -> Note:
        note = Note(kind, event, self._prefix)
        self.entries.append(note)
        return note

    def _begin(self, event: StepStarted) -> StepView:
        step = StepView(event.step, event.model, event.at, compaction=self._compaction, prefix=self._prefix)
        self._compaction = None
        if event.step not in self._steps:
            self.entries.append(step)
            self._steps[event.step] = step
        return self._steps[event.step]

    def _change(self, step: StepView, event: Event) -> None:
        match event:
            case ModelFallback():
                step.model = event.model
                step.fallbacks.append(event)
            case Answered():
                self._answer(step, event)
            case AnswerRejected():
                step.rejected = event.error
            case (
                ToolCallRepaired()
                | ToolCallStarted()
                | ToolCallDeferred()
                | ToolCallSettled()
                | Waiting()
                | Reminder()
                | Decided()
            ):
                _change_call(self._call(step, event.call_id, event.name, ""), event)

    def _answer(self, step: StepView, event: Answered) -> None:
        step.answered, step.text, step.usage = event.at, event.text, event.usage
        price = self._price_of(step.model)
        step.cost = price.of(event.usage) if price else None
        for call in event.tool_calls:
            self._call(step, call.id, call.name, call.arguments)

    def _call(self, step: StepView, call_id: str, name: str, raw: str) -> CallView:
        if call_id not in step.calls:
            number = len(step.calls) + 1
            step.calls[call_id] = CallView(call_id, name, step.number, raw, number, self._prefix)
        return step.calls[call_id]

    def link_corrections(self) -> None:
        """Link each mistake with the call that corrects it: the next one of the same tool that succeeds; after a call
        of a tool that does not exist, the first new call of the next step.
        """
        open_mistakes: list[CallView] = []
        steps = self.steps
        for place, step in enumerate(steps):
            for call in step.calls.values():
                if call.error is None and call.result is not None and (mistake := _corrected(call, open_mistakes)):
                    mistake.corrected_by, call.corrects = call, mistake
                    open_mistakes.remove(mistake)
            open_mistakes += [call for call in step.calls.values() if call.is_mistake]
            if step.rejected is not None and place + 1 < len(steps):
                step.corrected_in = steps[place + 1]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)


def _query(page: int | None) -> str:
    return "" if page is None else f"?page={page}"


def _change_call(call: CallView, event: Event) -> None:
    match event:
        case ToolCallRepaired():
            call.repairs = event.repairs
        case Waiting():
            call.waits.append(Wait(event))
            call.arguments = call.arguments if event.arguments is None else event.arguments
        case Reminder():
            if call.waits:
                call.waits[-1].reminders = event.number
        case Decided():
            if call.waits:
                call.waits[-1].decided = event
        case ToolCallStarted():
            call.started, call.arguments = event.at, event.arguments
        case ToolCallDeferred():
            call.deferred = event
        case ToolCallSettled():
            call.settled, call.result, call.attempts, call.run = event.at, event.result, event.attempts, event.run


def _corrected(call: CallView, mistakes: list[CallView]) -> CallView | None:
    """The newest open mistake that a call which succeeded corrects."""
    for mistake in reversed(mistakes):
        if mistake.step >= call.step:
            continue
        is_next = mistake.error is not None and mistake.error.kind == "unknown_tool" and mistake.step == call.step - 1
        if mistake.name == call.name or is_next:
            return mistake
    return None
