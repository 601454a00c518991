"""A run's spans by what Temporal's history holds: named, and with the ids, as the worker's own spans are.

Left out is what history does not know: attempts before the last one of an activity, tokens of single calls, fixers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mulligan.errors import error_of
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.trace_ids import STEPS_IN_A_GROUP, derive, group, parent_of_step, resumption
from mulligan.trace_view.decisions import decision_span, outcome_of, request_span, said_of
from mulligan.trace_view.history_events import Activity, Execution, type_and_message
from mulligan.trace_view.span import TraceSpan
from mulligan.trace_view.sub_runs import begun_span, ended_span
from mulligan.trace_view.turns import Turns
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import OpenedRun, OpenRun
from mulligan.wire.compaction_request import CompactConversation, Compacted
from mulligan.wire.model_call import ModelAnswer, ModelCall, PreparedCall
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.sub_run import AGENT_WORKFLOW, SubRunOutcome
from mulligan.wire.tool_call import CALL_TOOL, RECORD_LOST_CALL, CallTool, ToolOutcome
from mulligan.wire.updates import RecordedDecision

__all__ = ["spans_of"]


def spans_of(executions: Sequence[Execution]) -> list[TraceSpan]:
    """The spans of a chain of workflow runs, the first one first."""
    turns = Turns()
    return [span for execution in executions for span in _OneExecution(execution, turns).spans()]


class _OneExecution:
    def __init__(self, execution: Execution, turns: Turns) -> None:
        self._execution = execution
        self._turns = turns
        self._spans: dict[tuple[str, ...], TraceSpan] = {}
        # In the order in which the workflow scheduled them, which is that of their numbers.
        local = sorted((one for one in execution.activities if one.local), key=lambda one: one.sequence)
        self._local_calls = [one for one in local if one.type == CALL_TOOL]
        self._lost = [one for one in local if one.type == RECORD_LOST_CALL]
        self._decided = {
            (one.outcome.trace, one.outcome.call_id): one.outcome
            for one in local
            if isinstance(one.outcome, RecordedDecision)
        }
        self._scheduled = {
            (one.order.where.trace, one.order.call.id)
            for one in execution.activities
            if isinstance(one.order, CallTool)
        }

    def spans(self) -> list[TraceSpan]:
        """All of them. What settles a call later (a lost one's record) takes the place of what stood for it."""
        for activity in sorted(self._execution.activities, key=lambda one: one.event_id):
            if isinstance(activity.order, OpenRun):
                self._opened(activity, activity.order)
            elif isinstance(activity.order, (ModelCall, CompactConversation)):
                self._turns.see(activity.order.where.trace)
                self._asked(activity, activity.order)
            elif isinstance(activity.order, CallTool):
                self._turns.see(activity.order.where.trace)
                self._called(activity, activity.order)
            elif activity.type == FINISH_RUN:
                self._finished(activity)
            elif isinstance(done := activity.outcome, SubRunOutcome):
                said = said_of(self._decided.get((done.trace, done.call_id)))
                self._spans[done.trace, "tool", str(done.step), done.call_id] = ended_span(done, activity.ended, said)
            elif isinstance(activity.outcome, RecordedDecision):
                self._spans[activity.outcome.trace, "decision", activity.outcome.call_id] = decision_span(
                    activity.outcome
                )
        return list(self._spans.values())

    def _opened(self, activity: Activity, order: OpenRun) -> None:
        if not isinstance(activity.outcome, OpenedRun):
            return
        trace = activity.outcome.trace
        self._turns.opened(trace, order.turn, activity.outcome.facts)
        _, trace_id, span_id, _ = trace.split("-")
        parent = (order.parent or "").split("-")
        metadata = order.input.metadata if order.input else {}
        self._spans["root", trace] = TraceSpan(
            span_id=span_id,
            parent_id=parent[2] if len(parent) == 4 and parent[1] == trace_id else "",
            name=f"{semconv.INVOKE_AGENT} {order.agent}",
            start=activity.scheduled,
            end=activity.scheduled,
            attributes={
                semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
                semconv.AGENT_NAME: order.agent,
                semconv.WORKFLOW_ID: self._execution.workflow_id,
                semconv.RUN_ID: self._execution.run_id,
                **({semconv.TOOL_CALL_ID: order.call_id} if order.call_id else {}),
                **resumption(order.input.resumed_from if order.input else None),
                **{f"{semconv.METADATA}{key}": value for key, value in metadata.items()},
            },
        )

    def _asked(self, activity: Activity, order: ModelCall | CompactConversation) -> None:
        model, answer = ModelName.parse(order.model).name, activity.outcome
        error, message = self._error(activity)
        about: dict[str, Any] = {}
        if isinstance(order, CompactConversation):
            about = {semconv.COMPACTION: order.cut}
            if isinstance(answer, Compacted) and answer.error is not None:
                error, message = answer.error.kind, answer.error.message
        else:
            about = {semconv.FALLBACK: order.fallback} if order.fallback else {}
            self._open_group(activity, order)
        is_compaction = isinstance(order, CompactConversation)
        self._put(
            order.where.trace, order.step, ("chat", str(order.step), *about, *map(str, about.values())),
            (semconv.CHAT, order.step, activity.attempt, *about, *about.values()),
            parent=order.where.trace if is_compaction else None,
            name=f"{semconv.CHAT} {model}",
            times=self._times(activity),
            error=error,
            message=message,
            attributes={
                semconv.OPERATION_NAME: semconv.CHAT,
                semconv.REQUEST_MODEL: model,
                semconv.ATTEMPT: activity.attempt,
                **about,
            },
        )  # fmt: skip
        if isinstance(order, ModelCall) and isinstance(answer, ModelAnswer) and activity.ended is not None:
            self._answered(order, answer, activity.ended)

    def _open_group(self, activity: Activity, order: ModelCall) -> None:
        step, trace = order.step, order.where.trace
        if step > STEPS_IN_A_GROUP and step % STEPS_IN_A_GROUP == 1:
            self._spans["group", trace, str(step)] = TraceSpan(
                span_id=f"{derive(64, trace, *group(step)):016x}",
                parent_id=trace.split("-")[2],
                name=semconv.AGENT_STEPS,
                start=activity.scheduled,
                end=activity.scheduled,
                attributes={semconv.STEP: step, semconv.LAST_STEP: step + STEPS_IN_A_GROUP - 1},
            )

    def _answered(self, order: ModelCall, answer: ModelAnswer, at: float) -> None:
        """The calls that were settled as the answer was looked at, and those that ran as local activities."""
        is_fatal = any(prepared.failure is not None for prepared in answer.prepared)
        for call, prepared in zip(answer.message.tool_calls, answer.prepared, strict=True):
            if prepared.waits is not None:
                asked = request_span(order, call, prepared.waits, at)
                self._spans[order.where.trace, "request", call.id] = asked
            decided = self._decided.get((order.where.trace, call.id))
            if decided is not None and (outcome := outcome_of(decided)) is not None:
                times = decided.started, datetime.fromisoformat(decided.decision.at).timestamp()
                self._call(order, call, _repairs(prepared), times, 1, outcome=outcome)
            elif prepared.waits is not None and decided is None:
                continue
            elif prepared.text is not None or prepared.failure is not None:
                outcome = ToolOutcome(error=prepared.error, failure=prepared.failure)
                self._call(order, call, _repairs(prepared), (at, at), 1, outcome=outcome)
            elif not is_fatal and call.name in self._turns.sub_agents.get(order.where.trace, ()):
                begun = begun_span(order, call, _repairs(prepared), at, self._execution)
                self._spans[order.where.trace, "tool", str(order.step), call.id] = begun
            elif not is_fatal and (order.where.trace, call.id) not in self._scheduled:
                self._called_locally(order, call, _repairs(prepared), at)
        if answer.rejected is not None:
            name = self._turns.outputs.get(order.where.trace) or "answer"
            call = ToolCall(id=f"answer_{order.step}", name=name, arguments="")
            outcome = ToolOutcome(error=answer.rejected.error, failure=answer.rejected.failure)
            self._call(order, call, [], (at, at), 1, outcome=outcome)

    def _called_locally(self, order: ModelCall, call: ToolCall, repairs: list[str], at: float) -> None:
        if self._local_calls:
            activity = self._local_calls.pop(0)
            times, settled = self._times(activity), self._record_of(activity)
            self._call(order, call, repairs, times, activity.attempt, activity=settled)
        elif self._execution.closed is None:
            self._call(order, call, repairs, (at, None), 1)

    def _called(self, activity: Activity, order: CallTool) -> None:
        self._call(
            order, order.call, order.repaired_by, self._times(activity), activity.attempt,
            activity=self._record_of(activity),
        )  # fmt: skip

    def _record_of(self, activity: Activity) -> Activity:
        """What settled a call: another activity than its own, where its worker was lost or did not know the agent."""
        is_unsettled = isinstance(activity.outcome, ToolOutcome) and activity.outcome.unsettled is not None
        if (activity.how in ("failed", "timed_out") or is_unsettled) and self._lost:
            return self._lost.pop(0)
        return activity

    def _call(
        self, order: ModelCall | CallTool, call: ToolCall, repairs: list[str], times: tuple[float, float | None],
        attempt: int, *, activity: Activity | None = None, outcome: ToolOutcome | None = None,
    ) -> None:  # fmt: skip
        settled = outcome or (activity.outcome if activity else None)
        error, message = self._error(activity) if activity else ("", "")
        recovered = False
        if isinstance(settled, ToolOutcome):
            attempt = settled.attempts
            fatal = settled.failure or settled.unsettled
            recovered = settled.error is not None and fatal is None
            if settled.error is not None:
                error, message = settled.error.kind, settled.error.message
            elif fatal is not None:
                error = str(fatal.get("fields", {}).get("kind") or fatal.get("type"))
                message = str(fatal.get("message", ""))
        said: dict[str, Any] = {semconv.AI_ERROR: message} if error else {}
        self._put(
            order.where.trace, order.step, ("tool", str(order.step), call.id), ("tool", call.id, order.step, attempt),
            name=semconv.TOOL_CALL,
            times=times,
            error=error,
            message=message,
            attributes={
                semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
                semconv.AI_NAME: call.name,
                semconv.AI_ID: call.id,
                semconv.ATTEMPT: attempt,
                semconv.RECOVERED: recovered,
                semconv.REPAIRS: repairs,
                **said,
                **said_of(self._decided.get((order.where.trace, call.id))),
            },
        )  # fmt: skip

    def _finished(self, activity: Activity) -> None:
        trace = self._turns.finish()
        if trace is None:
            return
        execution, known = self._execution, {}
        error = ""
        if execution.workflow_type == AGENT_WORKFLOW:
            result = execution.result if isinstance(execution.result, dict) else {}
            if execution.failure is not None:
                typed = error_of(execution.failure)
                error = getattr(typed, "kind", None) or type(typed or execution.failure).__name__
            known = {semconv.STATUS: result.get("status") or execution.how}
            numbers = {semconv.STEPS: "steps", semconv.RECOVERED_FAILURES: "recovered_failures", semconv.COST: "cost"}
            for attribute, name in numbers.items():
                known |= {attribute: result[name]} if name in result else {}
        self._spans["finish", trace] = TraceSpan(
            span_id=f"{derive(64, trace, 'finish', self._turns.numbers.get(trace, 1)):016x}",
            parent_id=trace.split("-")[2],
            name=semconv.AGENT_FINISH,
            start=activity.scheduled,
            end=activity.ended,
            is_error=bool(error),
            message=error,
            attributes={**known, semconv.WORKFLOW_TYPE: execution.workflow_type}
            | ({semconv.ERROR_TYPE: error} if error else {}),
        )

    def _put(
        self, trace: str, step: int, key: tuple[str, ...], id_key: tuple[object, ...], *, name: str,
        times: tuple[float, float | None], error: str, message: str, attributes: dict[str, Any],
        parent: str | None = None,
    ) -> None:  # fmt: skip
        parent = parent or parent_of_step(trace, step)
        self._spans[trace, *key] = TraceSpan(
            span_id=f"{derive(64, parent, *id_key):016x}",
            parent_id=parent.split("-")[2],
            name=name,
            start=times[0],
            end=times[1],
            is_error=bool(error),
            message=message,
            attributes={semconv.STEP: step, **attributes} | ({semconv.ERROR_TYPE: error} if error else {}),
        )

    def _times(self, activity: Activity) -> tuple[float, float | None]:
        """From when a worker took it; what is still open as the run ends, ends with it."""
        start = activity.scheduled if activity.started is None else activity.started
        end = self._execution.closed if activity.ended is None else activity.ended
        return start, end

    def _error(self, activity: Activity) -> tuple[str, str]:
        """What went wrong, or what a running call waits for."""
        error, message = type_and_message(activity.failure)
        if activity.ended is not None:
            return ("cancelled", "The run was cancelled.") if activity.how == "cancelled" else (error, message)
        if self._execution.closed is not None:
            return self._execution.how, ""
        return "", ": ".join(filter(None, [activity.waits, message]))


def _repairs(prepared: PreparedCall) -> list[str]:
    return [repair.by for repair in prepared.repairs]
