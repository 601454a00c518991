"""The conversation of a run: append, digest, page, carry over. Pure: no Temporal, no I/O, no clock but its event log's.

It has two faces. The log is all messages, numbered from the beginning: what users page through. The view is what the
model is sent, and so what workers hold: the log itself, until a compaction puts one message in place of the oldest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter

from mulligan.values import (
    AssistantMessage,
    Compaction,
    Message,
    Step,
    StepCall,
    StepResult,
    ToolMessage,
    Usage,
    UserMessage,
)
from mulligan.wire.conversation_ref import CachedResult, Ref, chain
from mulligan.wire.model_call import PreparedCall
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.conversation.records import CallRecord, Earlier, Opening, StepRecord
from mulligan.workflows.conversation.shortened_step import shortened_step

HELD_FROM = 100
"""Characters of a result from which on a reference to it is the shorter one."""

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


class Conversation:
    """The messages of a run with the chained digest of each, and the steps that they were made in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.steps: list[StepRecord] = []
        self.earlier: Earlier | None = None
        self.opening: Opening | None = None
        self.cut = 0
        """Where, in `messages`, what the view shows as it was begins: all before it is the opening's."""
        self.asked = (0, 0)
        """Where the user's request of this turn stands in the log: from, until."""
        self.again_at = 0
        """Tokens before which no compaction is tried again."""
        self.compaction: Compaction | None = None
        """The one that the next step will show."""
        self.log = EventLog()
        self._digests = [""]
        self._sizes: list[int] = []
        self._settled: dict[str, ToolMessage] = {}

    def append(self, message: Message) -> int:
        """Add a message. Returns its number in the log."""
        digest, size = chain(self._digests[-1], message)
        self.messages.append(message)
        self._digests.append(digest)
        self._sizes.append(size)
        return self.first + len(self.messages) - 1

    def ask(self, messages: Sequence[Message]) -> None:
        """Add the messages that a turn begins with; the user's at their end are its request."""
        before = len(self.messages)
        for message in messages:
            self.append(message)
        end = len(self.messages)
        while end > before and self.messages[end - 1].role != "user":
            end -= 1
        start = end
        while start > before and self.messages[start - 1].role == "user":
            start -= 1
        self.asked = (self.first + start, self.first + end)

    @property
    def first(self) -> int:
        """The number, in the log, of the first message that is held here."""
        return self.earlier.messages if self.earlier else 0

    @property
    def first_step(self) -> int:
        """The same of the steps."""
        return self.earlier.steps if self.earlier else 0

    @property
    def next_step(self) -> int:
        """The number of the step that comes next, from 1."""
        return self.first_step + len(self.steps) + 1

    def ref(self, count: int | None = None) -> Ref:
        """The view up to `count` messages: all of it where None."""
        count = len(self._digests) - 1 if count is None else count
        return Ref(count=count, digest=self._digests[count])

    @property
    def said(self) -> int:
        """How many messages of the view there are up to the newest that the model said: what its worker has seen."""
        return self.steps[-1].at + 1 - self.shift if self.steps else 0

    @property
    def shift(self) -> int:
        """What a message's place in `messages` is more than its place in the view."""
        return self.cut - 1 if self.opening else 0

    def new_since(
        self, count: int, max_bytes: int
    ) -> list[UserMessage | AssistantMessage | ToolMessage | CachedResult] | None:
        """What comes after the first `count` messages of the view, for a worker.

        A result that is longer than its reference goes by reference: the worker that ran the tool holds it. None where there
        are only such results, as the worker can tell, and where it is more than `max_bytes`.
        """
        new: list[UserMessage | AssistantMessage | ToolMessage | CachedResult] = []
        inline = 0
        for message, size in self._view(count):
            if isinstance(message, ToolMessage) and len(message.text) > HELD_FROM:
                new.append(CachedResult(role="held", call_id=message.call_id))
            else:
                new.append(message)
                inline += size
        is_told = all(isinstance(message, CachedResult) for message in new)
        return None if is_told or inline > max_bytes else new

    def size(self, start: int, end: int | None = None) -> int:
        """Bytes of JSON of the messages that are held here, from one on and before another."""
        return sum(self._sizes[start:end])

    def page(self, since: int, count: int, max_bytes: int) -> list[Message]:
        """As many of the log's `count` messages from `since` on as fit into `max_bytes`: at least one, if there is one."""
        start = since - self.first
        end = start + count
        return _fitting(zip(self.messages[start:end], self._sizes[start:end], strict=True), max_bytes)

    def view_page(self, since: int, count: int, max_bytes: int) -> list[Message]:
        """The same of the view."""
        return _fitting(self._view(since)[:count], max_bytes)

    def left(self) -> list[Message]:
        """The view, with the results that a step which was cut off has for some of its calls."""
        view = [message for message, _ in self._view(0)]
        if self._settled:
            at = self.steps[-1].at
            said, after = self.messages[at], at + 1 - self.shift
            assert isinstance(said, AssistantMessage)
            view[after:after] = [self._settled[call.id] for call in said.tool_calls if call.id in self._settled]
        return view

    def open_with(self, opening: Opening, cut: int) -> None:
        """Put one message in place of all before `cut`: of the view's digests none is as it was."""
        self.opening, self.cut = opening, cut
        self._digests = [""]
        for message, _ in self._view(0):
            self._digests.append(chain(self._digests[-1], message)[0])

    def _view(self, since: int) -> list[tuple[Message, int]]:
        """What the model is sent after the first `since` messages of it, each with its bytes."""
        start = max(self.cut, since + self.shift)
        view = list(zip(self.messages[start:], self._sizes[start:], strict=True))
        if self.opening and not since:
            view.insert(0, (self.opening.message, chain("", self.opening.message)[1]))
        return view

    def begin_step(
        self, message: AssistantMessage, prepared: Sequence[PreparedCall], usage: Usage, model: str | None = None
    ) -> StepRecord:
        """Add what the model said, and the step that begins with it."""
        record = StepRecord(at=len(self.messages), usage=usage, compaction=self.compaction, model=model)
        self.compaction = None
        for call, found in zip(message.tool_calls, prepared, strict=True):
            arguments = found.arguments
            if arguments is None and found.error is None:
                # The handoff leaves out arguments that are just what the raw text says.
                arguments = json.loads(call.arguments)
            record.calls.append(CallRecord(arguments=arguments, repairs=found.repairs))
        self.append(message)
        self.steps.append(record)
        self.log.answered([place for place, call in enumerate(record.calls) if call.repairs])
        return record

    def settle(self, result: ToolMessage) -> None:
        """Show a call's result in its step at once; `end_step` adds it to the messages, in the order of the calls."""
        self._settled[result.call_id] = result

    def end_step(self, results: Sequence[ToolMessage]) -> None:
        """Add the results of a step's calls."""
        for result in results:
            self.append(result)
        self._settled.clear()

    def step_page(self, since: int, limit: int, max_bytes: int) -> list[Step]:
        """As many of the `limit` steps from `since` on as fit into `max_bytes`: at least one, if there is one."""
        page: list[Step] = []
        size = 0
        since -= self.first_step
        for index in range(since, min(since + limit, len(self.steps))):
            step = self._step(index)
            size += len(step.model_dump_json().encode())
            if size > max_bytes and page:
                break
            # One step alone may be larger than an answer: its texts are shortened here, and whole in the messages.
            page.append(step if size <= max_bytes else shortened_step(step, max_bytes))
        return page

    def _step(self, index: int) -> Step:
        record = self.steps[index]
        said = self.messages[record.at]
        assert isinstance(said, AssistantMessage)
        answers = [m for m in self.messages[record.at + 1 : record.at + 1 + len(record.calls)] if m.role == "tool"]
        results = {**self._settled, **{answer.call_id: answer for answer in answers}}
        calls = []
        for call, kept in zip(said.tool_calls, record.calls, strict=True):
            result = results.get(call.id)
            calls.append(
                StepCall(
                    id=call.id,
                    name=call.name,
                    raw_arguments=call.arguments,
                    arguments=kept.arguments,
                    repairs=kept.repairs,
                    attempts=kept.attempts,
                    run=kept.run,
                    decision=kept.decision,
                    result=StepResult(text=result.text, error=result.error) if result else None,
                )
            )
        number = self.first_step + index + 1
        about = {"error": record.error, "compaction": record.compaction, "model": record.model}
        return Step(step=number, text=said.text, usage=record.usage, tool_calls=calls, **about)

    def dump(self, run_id: str = "") -> dict[str, Any]:
        """What continue-as-new carries, as JSON: everything; after a compaction what is in the view.

        Of the rest it says that `run_id`, this run, holds it.
        """
        steps = [record for record in self.steps if record.at >= self.cut]
        moved = [record.model_copy(update={"at": record.at - self.cut}) for record in steps]
        state = {
            "messages": _MESSAGES.dump_python(self.messages[self.cut :], mode="json"),
            "steps": [record.model_dump(mode="json", exclude_defaults=True) for record in moved],
            "asked": self.asked,
            "again_at": self.again_at,
            "events": self.log.dump(self.first_step + len(self.steps) - len(steps) + 1),
        }
        earlier = self.earlier
        if self.cut:
            passed = len(self.steps) - len(steps)
            earlier = Earlier(messages=self.first + self.cut, steps=self.first_step + passed, run_id=run_id)
        if self.opening and earlier:
            state |= {"opening": self.opening.model_dump(mode="json"), "earlier": earlier.model_dump(mode="json")}
        return state

    @classmethod
    def load(cls, state: dict[str, Any]) -> Conversation:
        """The conversation that `dump` gave."""
        conversation = cls()
        if "opening" in state:
            conversation.earlier = Earlier.model_validate(state["earlier"])
            conversation.open_with(Opening.model_validate(state["opening"]), 0)
        for message in _MESSAGES.validate_python(state["messages"]):
            conversation.append(message)
        conversation.steps = [StepRecord.model_validate(record) for record in state["steps"]]
        conversation.asked = tuple(state.get("asked", (0, 0)))
        conversation.again_at = state.get("again_at", 0)
        if "events" in state:
            conversation.log = EventLog.load(state["events"])
        return conversation


def fitting(messages: Sequence[Message], max_bytes: int) -> list[Message]:
    """As many of the messages as fit into so many bytes of JSON: at least one, if there is one."""
    return _fitting(((message, len(message.model_dump_json().encode())) for message in messages), max_bytes)


def _fitting(messages: Iterable[tuple[Message, int]], max_bytes: int) -> list[Message]:
    page: list[Message] = []
    for message, size in messages:
        max_bytes -= size
        if max_bytes < 0 and page:
            break
        page.append(message)
    return page
