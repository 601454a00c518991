"""The conversation of a run: its messages, their digests, pages of them, and the state that is carried over.

It is pure: it schedules nothing, and only its event log reads the workflow's clock.

Messages are numbered in two ways. The log is all messages of the conversation, from its beginning: users page through
it. The view is what the model is sent, and so what workers cache: it is the same as the log until a compaction replaces
the oldest messages by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import JsonValue, TypeAdapter

from mulligan.content import media_of, shown_content
from mulligan.schema.argument_digest import argument_digest
from mulligan.schema.shared_field_sets import share_field_sets
from mulligan.values import (
    AssistantMessage,
    Message,
    Step,
    StepCall,
    StepCompaction,
    StepResult,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from mulligan.wire.conversation_ref import CachedResult, ConversationRef, chain_digest
from mulligan.wire.model_call import PreparedCall, write_arguments
from mulligan.wire.shorten import shorten
from mulligan.wire.tool_call import digest_of_call
from mulligan.wire.updates import EarlierDecision
from mulligan.workflows import limits
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.conversation.records import (
    STEP_RECORDS,
    CallRecord,
    ConversationSummary,
    EarlierPart,
    FormerView,
    InnerCall,
    StepRecord,
)

_NewMessages = list[UserMessage | AssistantMessage | ToolMessage | CachedResult]
_IN_MESSAGES = ": query `messages`"
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_RESULTS: TypeAdapter[dict[str, ToolMessage]] = TypeAdapter(dict[str, ToolMessage])


class Conversation:
    """The messages of a run, the chained digest of each, and the steps that they belong to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """The messages of the log that this run has: all but the `earlier` ones."""
        self.steps: list[StepRecord] = []
        self.earlier: EarlierPart | None = None
        self.summary: ConversationSummary | None = None
        """The first message of the view, after a compaction."""
        self.cut = 0
        """The index in `messages` of the first message that the view has unchanged; the summary replaces those before."""
        self.request_span = (0, 0)
        """The user's request of this turn, as numbers in the log: its first message, and the one after its last."""
        self.compact_again_at = 0
        """No compaction is tried below this number of tokens."""
        self.left_out = 0
        """Bytes of the view that the next request leaves out, and that no provider's count has left out yet."""
        self.pending_compaction: StepCompaction | None = None
        """The compaction that the next step will show."""
        self.shared_steps = 0
        """How many steps, from the first one on, are those of the run that this one was forked from."""
        self.former_views: list[FormerView] = []
        """What this run sent to the model before each of its compactions, the oldest first."""
        self.view_from = 1
        """The number of the first step for which this run knows what the model was sent."""
        self.event_log = EventLog()
        self._digests = [""]
        self._sizes: list[int] = []
        self._early_results: dict[str, ToolMessage] = {}
        """Results of the newest step's calls, by call id, until all of its calls have one."""

    def append(self, message: Message) -> int:
        """Add a message. Returns its number in the log."""
        share_field_sets(message)
        digest, size = chain_digest(self._digests[-1], message)
        self.messages.append(message)
        self._digests.append(digest)
        self._sizes.append(size)
        return self.first_message + len(self.messages) - 1

    def append_request(self, messages: Sequence[Message]) -> None:
        """Add the messages that a turn begins with; the user's messages at their end are its request."""
        before = len(self.messages)
        for message in messages:
            self.append(message)
        end = len(self.messages)
        while end > before and self.messages[end - 1].role != "user":
            end -= 1
        start = end
        while start > before and self.messages[start - 1].role == "user":
            start -= 1
        self.request_span = (self.first_message + start, self.first_message + end)

    @property
    def request_text(self) -> str:
        """The text of the last of the user's messages that the turn has begun with; shortened if it was summarized."""
        first, after_last = (number - self.first_message for number in self.request_span)
        if first < 0:
            return self.summary.task if self.summary else ""
        return self.messages[after_last - 1].text if first < after_last else ""

    @property
    def first_message(self) -> int:
        """The number, in the log, of the first message that this run has."""
        return self.earlier.messages if self.earlier else 0

    @property
    def first_step(self) -> int:
        """The index, among all steps of the conversation, of the first step that this run has."""
        return self.earlier.steps if self.earlier else 0

    @property
    def next_step(self) -> int:
        """The number of the next step, from 1, over all turns of the conversation."""
        return self.first_step + len(self.steps) + 1

    def ref(self, count: int | None = None) -> ConversationRef:
        """A reference to the first `count` messages of the view; to all of them if None."""
        count = len(self._digests) - 1 if count is None else count
        return ConversationRef(count=count, digest=self._digests[count])

    @property
    def count_at_answer(self) -> int:
        """How many messages the view has up to and including the model's newest answer; 0 before the first one."""
        return self.steps[-1].at + 1 - self.view_offset if self.steps else 0

    @property
    def view_offset(self) -> int:
        """The difference between a message's index in `messages` and its index in the view."""
        return self.cut - 1 if self.summary else 0

    def new_since(self, count: int, max_bytes: int) -> _NewMessages | None:
        """The view's messages after the first `count`, for a worker; a long result is replaced by a reference to it.

        The worker that ran the tool has the result in its cache. Returns None if there are only such results, which the
        worker then expects, and if the messages have more than `max_bytes` of JSON.
        """
        new: _NewMessages = []
        inline = 0
        for message, size in self._view(count):
            if isinstance(message, ToolMessage) and _is_long(message):
                new.append(CachedResult(role="cached_result", call_id=message.call_id))
            else:
                new.append(message)
                inline += size
        is_implied = all(isinstance(message, CachedResult) for message in new)
        return None if is_implied or inline > max_bytes else new

    def size(self, start: int, end: int | None = None) -> int:
        """Bytes of JSON of `messages[start:end]`."""
        return sum(self._sizes[start:end])

    def page(self, since: int, count: int, max_bytes: int) -> list[Message]:
        """Up to `count` messages of the log from number `since` on, and `max_bytes` of JSON, but at least one if any."""
        start = since - self.first_message
        end = start + count
        return _fitting(zip(self.messages[start:end], self._sizes[start:end], strict=True), max_bytes)

    def view_page(self, since: int, count: int, max_bytes: int) -> list[Message]:
        """Up to `count` messages of the view from number `since` on, with the bounds of `page`."""
        return _fitting(self._view(since)[:count], max_bytes)

    def whole_view(self) -> list[Message]:
        """All messages of the view."""
        return [message for message, _ in self._view(0)]

    def replace_by_summary(self, summary: ConversationSummary, cut: int) -> None:
        """Replace, in the view, all messages before index `cut` by one. Every digest of the view changes."""
        self.former_views.append(
            FormerView(until=self.next_step, summary=self.summary, cut=self.cut, compact_again_at=self.compact_again_at)
        )
        self._show_summary(summary, cut)

    def _show_summary(self, summary: ConversationSummary, cut: int) -> None:
        self.summary, self.cut = summary, cut
        self._digests = [""]
        for message, _ in self._view(0):
            self._digests.append(chain_digest(self._digests[-1], message)[0])

    def _view(self, since: int) -> list[tuple[Message, int]]:
        """The view's messages after the first `since`, each with its bytes of JSON."""
        start = max(self.cut, since + self.view_offset)
        view = list(zip(self.messages[start:], self._sizes[start:], strict=True))
        if self.summary and not since:
            view.insert(0, (self.summary.message, chain_digest("", self.summary.message)[1]))
        return view

    def begin_step(
        self, message: AssistantMessage, prepared: Sequence[PreparedCall], usage: Usage, model: str
    ) -> StepRecord:
        """Add the model's answer, and a step that begins with it."""
        record = StepRecord(at=len(self.messages), usage=usage, compaction=self.pending_compaction, model=model)
        self.pending_compaction = None
        record.calls = [CallRecord.of(each) for each in prepared]
        share_field_sets(record)
        self.append(message)
        self.steps.append(record)
        self.event_log.answered([index for index, call in enumerate(record.calls) if call.repairs])
        return record

    def add_inner_call(self, of: int, call: ToolCall, prepared: PreparedCall) -> int:
        """Add a call that call number `of` of the newest step makes. Returns its index."""
        record = CallRecord.of(prepared)
        step, inner = self.steps[-1], InnerCall(of=of, call=call, record=record, prepared=prepared)
        share_field_sets(inner)
        step.inner.append(inner)
        index = len(step.calls) + len(step.inner) - 1
        if record.repairs:
            self.event_log.tool_call_repaired(index)
        return index

    def inner_calls(self, of: int | None = None) -> list[tuple[int, InnerCall]]:
        """The calls of the newest step that calls make, or those that call number `of` makes, each with its index."""
        step = self.steps[-1]
        return [(n, each) for n, each in enumerate(step.inner, len(step.calls)) if of is None or each.of == of]

    def edit_call(self, index: int, arguments: JsonValue, digest: str | None) -> None:
        """Replace the arguments of a call of the newest answer by those that a person has edited.

        `digest`: that of their normal form; None: that of their JSON.

        The model reads its call as it is executed. The answer is the newest message until all of its calls have a result.
        """
        if (at := index - len(self.steps[-1].calls)) >= 0:
            inner = self.steps[-1].inner[at]
            inner.call = _edited(inner.record, inner.call, arguments, digest)
            return
        record, answer = self.steps[-1].calls[index], self.messages.pop()
        assert isinstance(answer, AssistantMessage)
        del self._digests[-1], self._sizes[-1]
        call = answer.tool_calls[index]
        edited = _edited(record, call, arguments, digest)
        calls = [*answer.tool_calls[:index], edited, *answer.tool_calls[index + 1 :]]
        self.append(answer.model_copy(update={"tool_calls": calls}))

    def record_early_result(self, index: int, result: ToolMessage) -> None:
        """Show a call's result in its step before the step ends; `end_step` adds it to the messages.

        That of an inner call is in no message.
        """
        if (at := index - len(self.steps[-1].calls)) >= 0:
            inner = self.steps[-1].inner[at]
            inner.result, inner.prepared = result, None
        else:
            self._early_results[result.call_id] = result

    @property
    def has_open_answer(self) -> bool:
        """Whether the newest message is the model's answer: its calls, if it has any, have no result in the messages."""
        return bool(self.steps) and self.steps[-1].at == len(self.messages) - 1

    @property
    def early_results(self) -> Mapping[str, ToolMessage]:
        """The results that the newest step has before all of its calls have one, by call id."""
        return self._early_results

    def result_of(self, call_id: str) -> ToolMessage | None:
        """The result of a call; None if it has none, or only an earlier run of the chain has it."""
        early = self._early_results.get(call_id)
        return early or next(
            (each for each in reversed(self.messages) if isinstance(each, ToolMessage) and each.call_id == call_id),
            self._inner_results().get(call_id),
        )

    def _inner_results(self) -> dict[str, ToolMessage]:
        return {each.call.id: each.result for step in self.steps for each in step.inner if each.result is not None}

    def results(self) -> dict[str, ToolMessage]:
        """The results that this workflow run has, by call id."""
        in_messages = {each.call_id: each for each in self.messages if isinstance(each, ToolMessage)}
        return self._inner_results() | in_messages | self._early_results

    def carried_results(self) -> set[str]:
        """The ids of the calls whose results `dump` and the view contain."""
        carried = (each.call_id for each in self.messages[self.cut :] if isinstance(each, ToolMessage))
        inner = (each.call.id for step in self.steps if step.at >= self.cut for each in step.inner if each.result)
        return {*self._early_results, *carried, *inner}

    def end_step(self, results: Sequence[ToolMessage]) -> None:
        """Add the results of a step's calls to the messages, in the order of the calls."""
        for result in results:
            self.append(result)
        self._early_results.clear()

    def step_page(self, since: int, limit: int, max_bytes: int) -> list[Step]:
        """Up to `limit` steps from index `since` on, and `max_bytes` of JSON, but at least one if there is any."""
        page: list[Step] = []
        size = 0
        since -= self.first_step
        for index in range(since, min(since + limit, len(self.steps))):
            step = self._step(index)
            size += len(step.model_dump_json().encode())
            if size > max_bytes and page:
                break
            page.append(step if size <= max_bytes else _shortened_step(step, max_bytes))
        return page

    def step(self, number: int) -> Step | None:
        """The step with a number, from 1, whole; None if this run does not have it."""
        index = number - 1 - self.first_step
        return self._step(index) if 0 <= index < len(self.steps) else None

    def earlier_decisions(self, tool: str, most: int) -> list[EarlierDecision]:
        """The newest decisions on calls of a tool, the newest first, as far as this workflow run knows them."""
        decisions = []
        for index, record in reversed([*enumerate(self.steps, self.first_step + 1)]):
            answer = self.messages[record.at]
            assert isinstance(answer, AssistantMessage)
            calls = [
                *zip(answer.tool_calls, record.calls, strict=True),
                *((each.call, each.record) for each in record.inner),
            ]
            of_tool = [(call, each) for call, each in calls if call.name == tool and each.decision is not None]
            decisions += [_earlier_decision(index, call, each) for call, each in reversed(of_tool)]
            if len(decisions) >= most:
                break
        return decisions[:most]

    def _step(self, index: int) -> Step:
        record = self.steps[index]
        answer = self.messages[record.at]
        assert isinstance(answer, AssistantMessage)
        after_answer = self.messages[record.at + 1 : record.at + 1 + len(record.calls)]
        results = {
            **self._early_results,
            **{message.call_id: message for message in after_answer if message.role == "tool"},
        }
        calls = [
            _step_call(call, call_record, results.get(call.id))
            for call, call_record in zip(answer.tool_calls, record.calls, strict=True)
        ]
        for inner in record.inner:
            calls[inner.of].calls.append(_step_call(inner.call, inner.record, inner.result))
        return Step(
            step=self.first_step + index + 1,
            text=answer.text,
            usage=record.usage,
            tool_calls=calls,
            error=record.error,
            compaction=record.compaction,
            model=record.model,
            agent=record.agent,
            shared=self.first_step + index < self.shared_steps,
            hosted_calls=record.hosted_calls,
            citations=record.citations,
            files=shown_content(answer.files),
            finish_reason=record.finish_reason,
            adapted=list(record.adapted),
        )

    def dump(self, run_id: str = "") -> dict[str, Any]:
        """What continue-as-new carries, as JSON: the whole conversation, or after a compaction what the view has.

        `run_id`: this run's, which the next run names as the holder of the rest.
        """
        steps = [record for record in self.steps if record.at >= self.cut]
        moved = [replace(record, at=record.at - self.cut) for record in steps]
        state = {
            "messages": _MESSAGES.dump_python(self.messages[self.cut :], mode="json"),
            "steps": STEP_RECORDS.dump_python(moved, mode="json", exclude_defaults=True),
            "request_span": [*self.request_span],
            "compact_again_at": self.compact_again_at,
            "events": self.event_log.dump(self.first_step + len(self.steps) - len(steps) + 1),
        }
        if self._early_results:
            state["early_results"] = _RESULTS.dump_python(self._early_results, mode="json")
        if self.pending_compaction:
            state["compaction"] = self.pending_compaction.model_dump(mode="json")
        if self.shared_steps:
            state["shared"] = self.shared_steps
        if (view_from := self.former_views[-1].until if self.former_views else self.view_from) > 1:
            state["view_from"] = view_from
        earlier = self.earlier
        if self.cut:
            dropped = len(self.steps) - len(steps)
            earlier = EarlierPart(
                messages=self.first_message + self.cut, steps=self.first_step + dropped, run_id=run_id
            )
        if self.summary and earlier:
            state |= {"summary": self.summary.model_dump(mode="json"), "earlier": earlier.model_dump(mode="json")}
        return state

    def _load_records(self, state: dict[str, Any]) -> None:
        self.steps = STEP_RECORDS.validate_python(state["steps"])
        share_field_sets(self.steps)
        if "compaction" in state:
            self.pending_compaction = StepCompaction.model_validate(state["compaction"])
        self.request_span = tuple(state["request_span"])
        self.compact_again_at = state["compact_again_at"]
        self.view_from = state.get("view_from", 1)

    def before(self, step: int, request_span: tuple[int, int]) -> Conversation:
        """The conversation as it was before the model call of a step, whose view this run knows; without digests and events.

        `request_span`: of the turn of the step.
        """
        index = step - 1 - self.first_step
        record = self.steps[index] if index < len(self.steps) else None
        view = next((each for each in self.former_views if step < each.until), None)
        past = Conversation()
        past.messages = self.messages[: record.at if record else None]
        past.steps, past.earlier, past.request_span = self.steps[:index], self.earlier, request_span
        past.summary, past.cut, past.compact_again_at = (
            (view.summary, view.cut, view.compact_again_at) if view else (self.summary, self.cut, self.compact_again_at)
        )
        past.view_from = next(
            (each.until for each in reversed(self.former_views) if each.until <= step), self.view_from
        )
        past.pending_compaction = record.compaction if record else self.pending_compaction
        return past

    def take_over(self, state: dict[str, Any]) -> None:
        """Add what another run has recorded of the messages, which are those of `before(…)` and perhaps one more.

        Raises:
            ValueError: the state is none of these messages'.
        """
        self._load_records(state)
        answers = [(number, each) for number, each in enumerate(self.messages) if isinstance(each, AssistantMessage)]
        calls = {number: len(each.tool_calls) for number, each in answers}
        if any(calls.get(each.at) != len(each.calls) for each in self.steps):
            raise ValueError("its steps are not those of its messages")
        if "summary" in state:
            self.earlier = EarlierPart.model_validate(state["earlier"])
            self._show_summary(ConversationSummary.model_validate(state["summary"]), 0)
        self.shared_steps = self.first_step + len(self.steps)

    def calls_since(self, step: int) -> set[str]:
        """The ids of the calls of a step and of those after it."""
        answers = [self.messages[each.at] for each in self.steps[max(0, step - 1 - self.first_step) :]]
        return {call.id for each in answers if isinstance(each, AssistantMessage) for call in each.tool_calls}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Conversation:
        """The conversation that `dump` returned."""
        conversation = cls()
        if "summary" in state:
            conversation.earlier = EarlierPart.model_validate(state["earlier"])
            conversation._show_summary(ConversationSummary.model_validate(state["summary"]), 0)
        for message in _MESSAGES.validate_python(state["messages"]):
            conversation.append(message)
        conversation._load_records(state)
        conversation.shared_steps = state.get("shared", 0)
        conversation._early_results = _RESULTS.validate_python(state.get("early_results", {}))
        conversation.event_log = EventLog.load(state["events"])
        return conversation


def _edited(record: CallRecord, call: ToolCall, arguments: JsonValue, digest: str | None) -> ToolCall:
    """The call with the arguments that a person has edited, which its record shows from now on."""
    record.argument_digests = [digest or argument_digest(arguments), record.digests[-1]]
    record.raw, record.arguments = record.written(call), arguments
    record.digest = record.digest or digest_of_call(call)
    return ToolCall(id=call.id, name=call.name, arguments=write_arguments(arguments))


def _step_call(call: ToolCall, record: CallRecord, result: ToolMessage | None) -> StepCall:
    return StepCall(
        id=call.id,
        name=call.name,
        raw_arguments=record.written(call),
        arguments=record.arguments,
        repairs=record.repairs,
        attempts=record.attempts,
        run=record.run,
        decision=record.decision,
        questions=record.questions,
        deferred=record.deferred,
        recorded=record.recorded,
        argument_digests=record.argument_digests,
        result=_step_result(result, record) if result else None,
    )


def _step_result(result: ToolMessage, record: CallRecord) -> StepResult:
    trust = "untrusted" if record.untrusted else None
    return StepResult(text=result.text, error=result.error, content=shown_content(result.content), trust=trust)


def messages_that_fit(messages: Sequence[Message], max_bytes: int) -> list[Message]:
    """The first of the messages that fit into `max_bytes` of JSON, but at least one if there is any."""
    return _fitting(((message, len(message.model_dump_json().encode())) for message in messages), max_bytes)


def _is_long(result: ToolMessage) -> bool:
    content = sum(len(part.data or "") for part in media_of(result.content))
    return len(result.text) + content > limits.REFERENCE_CHARS


def _fitting(messages: Iterable[tuple[Message, int]], max_bytes: int) -> list[Message]:
    page: list[Message] = []
    for message, size in messages:
        max_bytes -= size
        if max_bytes < 0 and page:
            break
        page.append(message)
    return page


def _shortened_step(step: Step, max_bytes: int) -> Step:
    """A step that is larger than a page, with each long text cut so that it fits; `messages` has the whole texts."""
    calls = len(step.tool_calls) + sum(len(call.calls) for call in step.tool_calls)
    share = max_bytes // (8 * (calls + 1))  # a call has up to eight texts
    short = step.model_dump(mode="json")
    short["text"] = shorten(step.text, share, _IN_MESSAGES)
    if step.compaction is not None:
        short["compaction"]["text"] = shorten(step.compaction.text, share)
    for call in [each for outer in short["tool_calls"] for each in (outer, *outer.get("calls", ()))]:
        for name in ("name", "raw_arguments", "arguments"):
            call[name] = shorten(call[name], share, _IN_MESSAGES)
        for repair in call["repairs"]:
            repair |= {name: shorten(repair[name], share // len(call["repairs"])) for name in ("before", "after")}
        if "before" in (call.get("decision") or {}):
            call["decision"]["before"] = shorten(call["decision"]["before"], share, _IN_MESSAGES)
        for part in filter(None, (call["result"], (call["result"] or {}).get("error"))):
            part |= {name: shorten(part[name], share, _IN_MESSAGES) for name in ("text", "message") if name in part}
    return Step.model_validate(short)


def _earlier_decision(step: int, call: ToolCall, record: CallRecord) -> EarlierDecision:
    decision = record.decision
    assert decision is not None
    return EarlierDecision(
        step=step,
        call_id=call.id,
        decision=decision.decision,
        at=decision.at,
        by=decision.by,
        reason=decision.reason,
        arguments=shorten(json.dumps(record.arguments, ensure_ascii=False), limits.EARLIER_CHARS),
        rule=decision.rule.name if decision.rule else None,
    )
