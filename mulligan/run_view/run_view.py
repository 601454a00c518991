"""A run as its events describe it: steps, calls, texts, waits, usage, corrections and the end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mulligan.prices import Price, cost_of_hosted
from mulligan.run_view import changes
from mulligan.run_view.step_view import CallView, StepView, WaitView, WrittenCallView
from mulligan.values import Usage, is_inner_call
from mulligan.wire import event_types as events
from mulligan.wire.run_status import open_status

MOST_MISTAKES = 200
"""Mistakes among which the one is looked for that a call corrects: some models make thousands."""
Entry = StepView | events.Event
"""A step, or an event between steps."""
PriceOf = Callable[[str], Price | None]


class RunView:
    """The state of a run after some of its events, which `add` turns into changes.

    The reading may begin anywhere, stored events that were added already are passed over, and so are those of types that
    it does not know.
    """

    def __init__(
        self, *, price_of: PriceOf | None = None, most_steps: int | None = None, joins_gaps: bool = True
    ) -> None:
        """`price_of`: a model's price, for the cost of steps. `most_steps`: how many steps are remembered, without the
        events between them; None: all. `joins_gaps`: whether live text is passed on after characters that are missing;
        it then becomes void once the whole text is there. Otherwise it waits for that.
        """
        self.started: events.RunStarted | None = None
        self.end: events.RunEnded | None = None
        self.steps: dict[int, StepView] = {}
        self.entries: list[Entry] = []
        """The steps whose beginning was seen, and what happened between them."""
        self.usage = Usage()
        """Tokens of the model calls."""
        self.cost = 0.0
        """USD of the answers whose price is known."""
        self.last_text = ""
        """The text that was completed last."""
        self.below: dict[str, RunView] = {}
        """Views of the runs of sub-agents, by their ids, while the calls that started them are open."""
        self._price_of, self._most_steps, self._joins_gaps = price_of, most_steps, joins_gaps
        self._next = self._answers = 0
        self._open: StepView | None = None
        self._compaction: events.Compacted | None = None
        self._mistakes: deque[CallView] = deque(maxlen=MOST_MISTAKES)
        """The newest that no call has corrected yet."""
        self._attempt: int | None = None
        """Of the open text; None: there is none."""
        self._text = ""
        self._start = self._seen = 0
        """How many characters there are before and after `_text`."""
        self._numbered = 0, 0
        """The step of the text that was opened last, and its number."""
        self._written: dict[int, WrittenCallView] = {}
        """The calls that the model is writing, by their numbers in the answer."""

    @classmethod
    def of(cls, given: Iterable[events.Event], price_of: PriceOf | None = None) -> RunView:
        """The view after these events."""
        view = cls(price_of=price_of)
        for event in given:
            view.add(event)
        return view

    @property
    def newest_step(self) -> StepView | None:
        """The newest step."""
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def status(self) -> str:
        """The run's status, as it says it itself."""
        if self.end is not None:
            return self.end.status
        step = self.newest_step
        return open_status(call.waits_for for call in step.calls.values()) if step and step.answered else "running"

    def add(self, event: events.Event) -> list[changes.Change]:
        """Add an event, and return what it has changed, in order. The view has all changes already."""
        offset = getattr(event, "offset", None)
        if offset is not None:
            if offset < self._next:
                return []
            self._next = offset + 1
        return list(self._changes(event))

    def leave(self) -> list[changes.Change]:
        """End the stream here: what is open is closed, and does not continue."""
        return [*self._void(), *self._close_step()]

    def take_over(self, attempt: int, seen: int) -> changes.TextOpened:
        """Continue the text of the newest step, of which the first `seen` characters came from elsewhere."""
        step = self.newest_step or StepView(0)
        return self._open_text(step, attempt, seen)

    def _changes(self, event: events.Event) -> Iterator[changes.Change]:
        match event:
            case events.TextDelta() | events.ToolInputDelta():
                yield from self._piece(self._step(event.step), event)
            case events.TextVoid() | events.ModelFallback():
                step = self._step(event.step)
                yield from self._void()
                if isinstance(event, events.ModelFallback):
                    step.model = event.model
                    step.fallbacks.append(event)
                yield changes.Noted(event, step)
            case events.StepStarted():
                yield from self._begin(event)
            case events.Answered():
                yield from self._answered(self._step(event.step), event)
            case events.AnswerRejected():
                step = self._step(event.step)
                step.rejected = event.error
                yield changes.Noted(event, step)
            case events.Compacted():
                self._compaction = event
                self.usage += event.usage
                yield changes.Noted(event)
            case events.SubRunEvent():
                below = self.below.setdefault(event.source.id, RunView(most_steps=1))
                yield from (changes.Below(event.source, change) for change in below.add(event.event))
            case events.RunStarted() | events.MessageReceived() | events.Stopping():
                self.started = event if isinstance(event, events.RunStarted) else self.started
                self.entries.append(event)
                yield changes.Noted(event)
            case events.RunEnded():
                yield from self.leave()
                self.end = event
                self.entries.append(event)
                self.below.clear()
                yield changes.Ended(event)
            case _ if hasattr(event, "call_id"):
                yield from self._of_any_call(self._step(event.step), event)

    def _step(self, number: int) -> StepView:
        """The step with a number. Where the reading began in the middle of it, its beginning stays unknown."""
        if number not in self.steps:
            self.steps[number] = StepView(number, answer_number=self._answers + 1)
        return self.steps[number]

    def _begin(self, event: events.StepStarted) -> Iterator[changes.Change]:
        yield from self.leave()
        step = self._step(event.step)
        step.model = step.first_model = event.model
        step.started = event.at
        step.compaction, self._compaction = self._compaction, None
        before = self.steps.get(event.step - 1)
        if before is not None and before.rejected is not None:
            before.corrected_in = step
        self.entries.append(step)
        if self._most_steps is not None:
            first = event.step - self._most_steps + 1
            self.steps = {number: each for number, each in self.steps.items() if number >= first}
            self.entries = list(self.steps.values())
            self._mistakes = deque((call for call in self._mistakes if call.step >= first), MOST_MISTAKES)
        self._open = step
        yield changes.StepOpened(step)

    def _close_step(self) -> Iterator[changes.Change]:
        step, self._open = self._open, None
        if step is not None:
            yield changes.StepClosed(step)

    # Text

    def _piece(self, step: StepView, event: events.TextDelta | events.ToolInputDelta) -> Iterator[changes.Change]:
        """A piece of what the model is writing. What an earlier attempt has written is void."""
        if step.answered:
            return
        if self._attempt not in (None, event.attempt) or any(
            each.attempt != event.attempt for each in self._written.values()
        ):
            yield from self._void()
        yield from self._delta(step, event) if isinstance(event, events.TextDelta) else self._input(event)

    def _delta(self, step: StepView, event: events.TextDelta) -> Iterator[changes.Change]:
        has_gap = event.start > self._seen
        text = event.text[max(0, self._seen - event.start) :]
        if not text or (has_gap and not self._joins_gaps):
            return
        if self._attempt is None:
            yield self._open_text(step, event.attempt, 0)
        yield self._extend(step, text, has_gap=has_gap, seen=event.start + len(event.text))

    def _input(self, event: events.ToolInputDelta) -> Iterator[changes.Change]:
        if event.index not in self._written:
            place = event.step, event.attempt, event.index
            written = WrittenCallView(*place, event.call_id, event.name, event.may_wait, event.start)
            self._written[event.index] = written
            yield changes.InputOpened(self._written[event.index])
        call = self._written[event.index]
        seen = call.start + len(call.text)
        # What follows characters that are missing comes with the answer.
        if text := event.text[seen - event.start :] if event.start <= seen else "":
            call.text += text
            yield changes.InputExtended(call, text)

    def _answered(self, step: StepView, event: events.Answered) -> Iterator[changes.Change]:
        step.answered, step.text, step.usage = event.at, event.text, event.usage
        calls = [step.call(call.id, call.name) for call in event.tool_calls]
        for call, tool_call in zip(calls, event.tool_calls, strict=True):
            call.raw_arguments = tool_call.arguments
        written = {n: each for n, each in self._written.items() if n < len(calls) and each.becomes(calls[n])}
        yield from (changes.InputVoid(each) for n, each in self._written.items() if n not in written)
        self._written.clear()
        is_continued = len(event.text) >= self._start and event.text[self._start :].startswith(self._text)
        if self._attempt is not None and not (event.text and is_continued):
            yield from self._void()
        self._answers += 1
        step.hosted_calls, step.citations, step.files = event.hosted_calls, event.citations, event.files
        price = self._price_of(step.model) if self._price_of else None
        step.cost = price.of(event.usage) if price else None
        if step.cost is not None and self._price_of and event.hosted_calls:
            step.cost += cost_of_hosted(self._price_of, step.model, [call.name for call in event.hosted_calls])
        self.usage += event.usage
        self.cost += step.cost or 0.0
        if event.text:
            if self._attempt is None:
                yield self._open_text(step, 1, 0)
            if rest := event.text[self._start + len(self._text) :]:
                yield self._extend(step, rest, has_gap=False, seen=len(event.text))
            self.last_text = event.text
            yield self._close_text(step, event.text, is_void=False)
        yield changes.StepAnswered(step)
        for number, call in enumerate(calls):
            if (each := written.get(number)) and (rest := call.raw_arguments[each.start + len(each.text) :]):
                each.text += rest
                yield changes.InputExtended(each, rest)
            yield changes.CallAnnounced(call, each)

    def _void(self) -> Iterator[changes.Change]:
        written, self._written = list(self._written.values()), {}
        yield from map(changes.InputVoid, written)
        if self._attempt is not None:
            yield self._close_text(self._step(self._numbered[0]), self._text, is_void=True)

    def _open_text(self, step: StepView, attempt: int, seen: int) -> changes.TextOpened:
        self._attempt, self._text, self._start, self._seen = attempt, "", seen, seen
        number = max(attempt, self._numbered[1] + 1) if self._numbered[0] == step.number else attempt
        self._numbered = step.number, number
        return changes.TextOpened(step, number)

    def _extend(self, step: StepView, text: str, *, has_gap: bool, seen: int) -> changes.TextExtended:
        self._text, self._seen = self._text + text, seen
        return changes.TextExtended(step, text, seen, has_gap)

    def _close_text(self, step: StepView, text: str, *, is_void: bool) -> changes.TextClosed:
        self._attempt, self._text, self._start, self._seen = None, "", 0, 0
        return changes.TextClosed(step, text, is_void)

    # Calls

    def _of_any_call(self, step: StepView, event: Any) -> Iterator[changes.Change]:
        is_new_inner = event.call_id not in step.calls and is_inner_call(event.call_id)
        call = step.call(event.call_id, event.name)
        if is_new_inner:
            # No answer has announced a call that a script makes.
            arguments = getattr(event, "arguments", None)
            call.raw_arguments = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
            yield changes.CallAnnounced(call)
        yield from self._of_call(step, call, event)

    def _of_call(self, step: StepView, call: CallView, event: events.Event) -> Iterator[changes.Change]:
        match event:
            case events.Waiting():
                wait = WaitView(event)
                call.waits.append(wait)
                call.arguments = call.arguments if event.arguments is None else event.arguments
                yield changes.WaitOpened(call, wait)
            case events.Decided():
                newest = call.waits[-1] if call.waits else None
                if event.rule is not None:
                    call.by_rule = event
                elif newest is not None:
                    newest.decided = event
                yield changes.WaitEnded(call, newest, event)
            case events.ToolCallStarted():
                is_first = call.started is None
                call.started, call.arguments = event.at, event.arguments
                if is_first:
                    yield changes.CallRunning(call)
            case events.ToolCallSettled():
                call.settled, call.settled_at, call.result = event.at, event.offset, event.result
                call.attempts, call.run = event.attempts, event.run
                self._settle(step, call)
                yield changes.CallSettled(call)
            case _:
                _note(call, event)
                yield changes.Noted(event, step)

    def _settle(self, step: StepView, call: CallView) -> None:
        for run_id in [each for each in self.below if call.run and f"{each}/".startswith(f"{call.run.id}/")]:
            del self.below[run_id]
        if step.started is None:
            return
        if call.is_mistake:
            self._mistakes.append(call)
        elif call.error is None:
            mistake = next((each for each in reversed(self._mistakes) if call.could_correct(each)), None)
            if mistake is not None:
                mistake.corrected_by, call.corrects = call, mistake
                self._mistakes.remove(mistake)


def _note(call: CallView, event: events.Event) -> None:
    match event:
        case events.ToolCallRepaired():
            call.repairs = event.repairs
        case events.ToolCallDeferred():
            call.deferred = event
        case events.HandedOver():
            call.handed_over = event
        case events.Reminder() if call.waits:
            call.waits[-1].reminders = event.number
