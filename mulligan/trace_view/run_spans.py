"""The spans of a run as its one reading has them (`mulligan/run_view`), for what Jaeger does not have.

They have the names, the parents and the ids of those that workers write (`mulligan/observe/spans.py`). Each call has one,
which says how often its tool was started: the attempts before the last one are not events of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from mulligan.model_name import ModelName
from mulligan.observe import spans
from mulligan.observe.spans import ChatAttempt, SpanDefinition, SpanFailure, ToolCallAttempt, TracedTurn
from mulligan.observe.trace_ids import begins_group
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import CallView, StepView
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.values import Decision, ErrorInfo, ToolCall, Usage
from mulligan.wire.event_types import Decided, RunEnded, RunStarted
from mulligan.wire.run_end import TurnEnd

_WITHOUT_FINISH = frozenset({"terminated", "timed_out"})
"""How a run ends without being able to write anything more."""
_DEFERRED = {"timer": "a point in time"}


@dataclass
class ReadRun:
    """An agent of a run, as it was read. `parent`: the traceparent below which its turns are, of a sub-agent's run.

    `call_id`: of the call that has started that.
    """

    view: RunView
    trace_id: str
    workflow_id: str
    run_id: str
    first_run_id: str
    workflow_type: str
    conversation: str = "0"
    parent: str = ""
    call_id: str | None = None
    parents: dict[str, str] = field(default_factory=dict)
    """The parents of the spans of its calls, by their ids, once `spans_of` has been called."""


def spans_of(run: ReadRun) -> list[TraceSpan]:
    """The spans of all turns of the agent."""
    return [span for turn in _turns(run) for span in turn.build()]


def _turns(run: ReadRun) -> Iterator[_TurnSpans]:
    """The turns, in their order. Of the first one, the beginning is missing if its workflow run is no longer there."""
    turn, steps = _TurnSpans(run, None, 0), 0
    for entry in run.view.entries:
        match entry:
            case RunStarted():
                yield turn
                turn = _TurnSpans(run, entry, steps)
            case StepView():
                turn.steps.append(entry)
                steps += 1
            case RunEnded():
                turn.end = entry
    yield turn


class _TurnSpans:
    """The spans of one turn. `before`: how many steps its agent had before it."""

    def __init__(self, run: ReadRun, started: RunStarted | None, before: int) -> None:
        self.run, self.started, self.before = run, started, before
        self.steps: list[StepView] = []
        self.end: RunEnded | None = None
        self._spans: list[TraceSpan] = []
        root = self._root()
        self._trace = f"00-{run.trace_id}-{root.span_id:016x}-01"

    def build(self) -> list[TraceSpan]:
        """The spans, in about the order of their beginning."""
        if self.started is not None:
            self._put(self._root(), self.started.at, self.started.at)
        for step in self.steps:
            self._add_step(step, step.number - self.before)
        if self.end is not None and self.end.status not in _WITHOUT_FINISH:
            self._add_finish(self.end)
        return self._spans

    def _put(
        self,
        definition: SpanDefinition,
        start: datetime,
        end: datetime | None,
        failure: SpanFailure | None = None,
        message: str = "",
    ) -> None:
        ended = None if end is None else end.timestamp()
        self._spans.append(TraceSpan.from_definition(definition, start.timestamp(), ended, failure, message))

    def _root(self) -> SpanDefinition:
        run, started = self.run, self.started
        of_run = TracedTurn(
            agent=started.agent if started else "",
            turn=started.turn if started else 1,
            parent=run.parent or None,
            **{
                name: getattr(run, name)
                for name in ("workflow_id", "run_id", "first_run_id", "conversation", "call_id")
            },
        )
        # A run that has joined the trace of its caller is a root here: the caller's spans are elsewhere.
        return replace(spans.invoke_agent(of_run), trace_id=int(run.trace_id, 16))

    def _add_finish(self, ended: RunEnded) -> None:
        result = ended.result
        end = TurnEnd(
            turn=ended.turn,
            status=ended.status,
            steps=result.steps if result else len(self.steps),
            recovered_failures=result.recovered_failures if result else 0,
            usage=result.usage if result else Usage(),
            cost=result.cost if result else None,
        )
        failure = spans.finish_failure(ended.error.kind) if ended.error else None
        self._put(spans.agent_finish(self._trace, end, self.run.workflow_type), ended.at, ended.at, failure)

    # Model calls

    def _add_step(self, step: StepView, number: int) -> None:
        started = step.started
        assert started is not None, "the reading has its beginning, or it would be no entry"
        if begins_group(number):
            self._put(spans.agent_steps(self._trace, number), started, started)
        if step.compaction is not None:
            at, error = step.compaction.at, step.compaction.error
            summary = _chat(step.first_model, number, compacted_messages=step.compaction.messages)
            self._put(spans.chat(self._trace, summary), at, at, _failure(error))
        for failed, fallback in enumerate(step.fallbacks):
            model = step.fallbacks[failed - 1].model if failed else step.first_model
            chat = spans.chat(self._trace, _chat(model, number, fallback=failed))
            self._put(chat, started, fallback.at, _failure(fallback.error))
            started = fallback.at
        chat = spans.chat(self._trace, _chat(step.model, number, fallback=len(step.fallbacks)))
        failure = None if step.answered else self._ended_with_turn()
        self._put(chat, started, step.answered or self._end_of_turn, failure)
        for call in step.calls.values():
            self._add_call(call, number, step)
        if step.rejected is not None and step.answered is not None:
            attempt = _attempt(ToolCall(id=f"answer_{number}", name="answer", arguments=""), number)
            failure = _call_failure(step.rejected, recovered=not self._is_unread(step))
            self._put(spans.tool_call(self._trace, attempt), step.answered, step.answered, failure)

    def _is_unread(self, step: StepView) -> bool:
        """Whether no model reads the results of a step, as the turn has failed in it."""
        return self.end is not None and self.end.status in ("failed", "diverged") and step is self.steps[-1]

    @property
    def _end_of_turn(self) -> datetime | None:
        return self.end.at if self.end else None

    def _ended_with_turn(self) -> SpanFailure | None:
        """Why something that was open as the turn ended has no result; None: the turn is open."""
        if self.end is None:
            return None
        failure = _failure(self.end.error) if self.end.status == "failed" else None
        return failure or SpanFailure(kind=self.end.status, text="")

    # Calls

    def _add_call(self, call: CallView, number: int, step: StepView) -> None:
        written = ToolCall(id=call.id, name=call.name, arguments="")
        decision = self._add_waits(call, written, number)
        attempt = _attempt(
            written,
            number,
            attempt=call.attempts or 1,
            repaired_by=[repair.by for repair in call.repairs],
            decision=decision,
            sub_run=call.run.id if call.run else "",
            handed_to=call.handed_over.agent if call.handed_over else "",
            untrusted=call.result is not None and call.result.trust is not None,
        )
        definition = spans.tool_call(self._trace, attempt)
        self.run.parents[call.id] = definition.parent
        if call.settled is None and call.started is None and self.end is None:
            return  # it waits, or is about to begin
        asked = call.waits[0].asked.at if call.waits else None
        start = call.started or asked or step.answered or call.settled or self._end_of_turn
        assert start is not None
        is_unread = decision is not None and decision.decision == "stopped"
        failure = _call_failure(call.error, recovered=not is_unread and not self._is_unread(step))
        if self.end is not None and (call.settled is None or self._was_cancelled(call, step)):
            failure = self._ended_with_turn()
        waits_for = "" if call.deferred is None else _DEFERRED.get(call.deferred.deferred.kind, "its result")
        self._put(definition, start, call.settled or self._end_of_turn, failure, waits_for)

    def _was_cancelled(self, call: CallView, step: StepView) -> bool:
        """Whether a call was ended with its run: its result says that it is lost."""
        is_lost = call.error is not None and call.error.kind == "tool_lost"
        return is_lost and self.end is not None and self.end.status == "cancelled" and step is self.steps[-1]

    def _add_waits(self, call: CallView, written: ToolCall, number: int) -> Decision | None:
        """Add the requests to people, and their decisions. Returns the last decision on the call."""
        decision = None
        for question, wait in enumerate(call.waits):
            kind, at = wait.asked.kind, wait.asked.at
            asked = spans.agent_request(self._trace, written, step=number, kind=kind, question=question)
            self._put(asked, at, at)
            if wait.decided is not None:
                decision = self._add_decision(written, number, wait.decided, kind, at, question)
        if call.by_rule is not None:
            decision = self._add_decision(written, number, call.by_rule, "approval", call.by_rule.at, 0)
        return decision

    def _add_decision(
        self, written: ToolCall, number: int, decided: Decided, kind: str, since: datetime, question: int
    ) -> Decision:
        said = {name: getattr(decided, name) for name in ("decision", "by", "edited", "edited_by", "rule")}
        decision = Decision(kind=kind, since=since.isoformat(), at=decided.at.isoformat(), **said)
        definition = spans.agent_decision(self._trace, written, step=number, decision=decision, question=question)
        self._put(definition, decided.at, decided.at)
        return decision


def _chat(model: str, step: int, **fields: Any) -> ChatAttempt:
    return ChatAttempt(model=ModelName.parse(model).name, step=step, attempt=1, **fields)


def _attempt(call: ToolCall, step: int, **fields: Any) -> ToolCallAttempt:
    attempt = {"call": call, "step": step, "attempt": 1} | fields
    return ToolCallAttempt(**cast("dict[str, Any]", attempt))


def _failure(error: ErrorInfo | None) -> SpanFailure | None:
    return SpanFailure(kind=error.kind, text=error.message) if error else None


def _call_failure(error: ErrorInfo | None, *, recovered: bool) -> SpanFailure | None:
    return spans.tool_call_failure(error.kind, error.message, recovered=recovered) if error else None
