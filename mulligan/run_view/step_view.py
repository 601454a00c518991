"""A step of a run as its events describe it: the model call, the calls of its answer, and what these waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from mulligan.content import Part
from mulligan.values import Citation, ErrorInfo, HostedCall, Repair, StepResult, SubRun, Usage
from mulligan.wire.event_types import Compacted, Decided, HandedOver, ModelFallback, ToolCallDeferred, Waiting

DENIED = "denied"
"""The kind of a call's error where a person, or the guard, refused it."""
_MISTAKES_BEFORE = frozenset(
    {"unknown_tool", "invalid_json", "invalid_arguments", "truncated_call", "duplicate_call", "invalid_code"}
)
_MISTAKES_SEEN_BY_TOOLS = frozenset({"tool_error"})
"""With these, a tool says what was wrong with the call."""


def is_models_mistake(kind: str, attempts: int) -> bool:
    """Whether a call's error is a mistake of the model. Otherwise a tool, its worker or a person let the call fail.

    Args:
        kind: The error's kind.
        attempts: How often the call's tool was started. A call that was started was valid: a worker that does not know its
            tool any more is no mistake of the model.
    """
    return kind in (_MISTAKES_SEEN_BY_TOOLS if attempts else _MISTAKES_BEFORE)


@dataclass(eq=False)
class WaitView:
    """A time for which a call waited for a person. `decided`: what ended it."""

    asked: Waiting
    decided: Decided | None = None
    reminders: int = 0
    """How often people were reminded of it."""


@dataclass(eq=False)
class CallView:
    """A call of a step. Fields with the names of those of `StepCall` have the same values."""

    id: str
    name: str
    step: int
    number: int
    """Its number in the step, from 1."""
    raw_arguments: str = ""
    arguments: Any = None
    repairs: list[Repair] = field(default_factory=list)
    waits: list[WaitView] = field(default_factory=list)
    by_rule: Decided | None = None
    """That it was approved by a rule, so that it did not wait."""
    started: datetime | None = None
    deferred: ToolCallDeferred | None = None
    handed_over: HandedOver | None = None
    settled: datetime | None = None
    settled_at: int = 0
    """The offset of the event that settled it: calls of one step run at the same time."""
    result: StepResult | None = None
    attempts: int = 0
    run: SubRun | None = None
    corrects: CallView | None = field(default=None, repr=False)
    """The mistake that this call corrects: the newest one of an earlier step in the same tool."""
    corrected_by: CallView | None = field(default=None, repr=False)

    @property
    def error(self) -> ErrorInfo | None:
        """Why the call failed."""
        return self.result.error if self.result else None

    @property
    def is_mistake(self) -> bool:
        """Whether it failed by a mistake of the model."""
        return self.error is not None and is_models_mistake(self.error.kind, self.attempts)

    @property
    def has_failed(self) -> bool:
        """Whether it failed without anybody's mistake or decision: as its tool, or its worker, did."""
        return self.error is not None and self.error.kind != DENIED and not self.is_mistake

    @property
    def is_question(self) -> bool:
        """Whether its only argument is the question that it asks a person."""
        asked = [wait.asked.text for wait in self.waits if wait.asked.kind == "question"]
        return isinstance(self.arguments, dict) and [*self.arguments.values()] == asked[:1] != []

    @property
    def open_wait(self) -> WaitView | None:
        """The person's decision or answer that it waits for now."""
        return next((wait for wait in self.waits if wait.decided is None), None) if not self.settled else None

    @property
    def waits_for(self) -> str | None:
        """The kind of what ends it, of `WaitingFor`; None: it is settled, or neither runs nor waits."""
        if self.settled is not None:
            return None
        if self.open_wait is not None:
            return "person"
        if self.deferred is not None:
            return self.deferred.deferred.kind
        return "tool" if self.started is not None else None

    @property
    def was_edited(self) -> bool:
        """Whether a person has approved it with other arguments."""
        return any(wait.decided is not None and wait.decided.edited for wait in self.waits)

    @property
    def needed_approval(self) -> bool:
        """Whether people were asked to approve it."""
        return any(wait.asked.kind == "approval" for wait in self.waits)

    def could_correct(self, mistake: CallView) -> bool:
        """Whether its success corrects a mistake of an earlier step."""
        return mistake.step < self.step and mistake.name == self.name


@dataclass(eq=False)
class WrittenCallView:
    """A call that the model is writing. `text`: its arguments after the first `start` characters, which are not known."""

    step: int
    attempt: int
    index: int
    """Its number in the answer, from 0."""
    id: str
    """"": not known yet."""
    name: str
    may_wait: bool
    start: int
    text: str = ""

    @property
    def is_announced(self) -> bool:
        """Whether protocols announce it, as it is known from its beginning, and waits for nobody."""
        return bool(self.id) and not self.may_wait and not self.start

    def becomes(self, call: CallView) -> bool:
        """Whether the answer has it as `call`."""
        return self.id == call.id and call.raw_arguments[self.start :].startswith(self.text)


@dataclass(eq=False)
class StepView:
    """A model call and the calls of its answer."""

    type: ClassVar[str] = "step"
    number: int
    model: str = ""
    first_model: str = ""
    """The one that was called before the others that are in `fallbacks`."""
    started: datetime | None = None
    """None: the reading began in the middle of the step."""
    answer_number: int = 0
    """The number of its answer among those of the run, from 1: steps that fail have none."""
    answered: datetime | None = None
    text: str = ""
    usage: Usage | None = None
    cost: float | None = None
    hosted_calls: list[HostedCall] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    files: list[Part] = field(default_factory=list)
    calls: dict[str, CallView] = field(default_factory=dict)
    rejected: ErrorInfo | None = None
    corrected_in: StepView | None = field(default=None, repr=False)
    """The step after a rejected answer."""
    compaction: Compacted | None = None
    fallbacks: list[ModelFallback] = field(default_factory=list)

    @property
    def is_mistaken(self) -> bool:
        """Whether the model has made a mistake in it."""
        return self.rejected is not None or any(call.is_mistake for call in self.calls.values())

    def call(self, call_id: str, name: str) -> CallView:
        """The call with an id, which is added where the reading has not seen the answer."""
        if call_id not in self.calls:
            self.calls[call_id] = CallView(call_id, name, self.number, len(self.calls) + 1)
        return self.calls[call_id]
