"""Rebuilds a run's spans from Temporal's history, by the definitions (`mulligan/observe/spans.py`) that workers use.

A history does not contain all spans: attempts before an activity's last one, the tokens of single model calls, and the
models that repair arguments are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from mulligan.content import media_of
from mulligan.features import OWN
from mulligan.observe import spans
from mulligan.observe.spans import AgentRun, ChatAttempt, SpanDefinition, SpanFailure, ToolCallAttempt
from mulligan.observe.trace_ids import begins_group
from mulligan.trace_view.history_events import Activity, Execution, type_and_message
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import AgentFacts, OpenedRun, OpenRun
from mulligan.wire.model_call import ModelAnswer, ModelCall, PreparedCall, RejectedAnswer
from mulligan.wire.run_end import RecordedEnd
from mulligan.wire.tool_call import CALL_TOOL, CallTool, RecordedCall, RecordedFailure, ToolOutcome
from mulligan.wire.updates import RecordedDecision

AddSpans: TypeAlias = Mapping[type, "Callable[[ExecutionSpans, Activity], None]"]
"""What adds the spans of an activity of a feature, by the class of its input or its result."""


def spans_of(executions: Sequence[Execution]) -> list[TraceSpan]:
    """The spans of a chain of workflow runs, the first one first."""
    agents: dict[str, AgentFacts] = {}
    return [span for execution in executions for span in ExecutionSpans(execution, agents).rebuild()]


@cache
def _of_features() -> AddSpans:
    """Not when this is imported: the features' parts import it."""
    return {kind: add for each in OWN for kind, add in (each.spans or {}).items()}


class ExecutionSpans:
    """The spans of one workflow run. `agents`: the facts of the agents that have the conversations, by turns' traces."""

    def __init__(self, execution: Execution, agents: dict[str, AgentFacts]) -> None:
        self.execution, self.agents = execution, agents
        self.spans: dict[tuple[object, ...], TraceSpan] = {}
        # The workflow's order: the SDK's numbers count up as the workflow schedules activities.
        local = sorted((each for each in execution.activities if each.local), key=lambda each: each.sequence)
        outcomes = [each.outcome for each in execution.activities]
        self._local_calls = [activity for activity in local if activity.type == CALL_TOOL]
        self._failures = {(each.trace, each.call_id): each for each in outcomes if isinstance(each, RecordedFailure)}
        self._decisions = {
            (each.trace, each.call_id): each
            for each in outcomes
            if isinstance(each, RecordedDecision) and _settles(each)
        }
        self._scheduled_calls = {
            (activity.request.where.trace, activity.request.call.id)
            for activity in execution.activities
            if isinstance(activity.request, CallTool)
        }

    def rebuild(self) -> list[TraceSpan]:
        """All spans. A later record of a call (it was lost, or its sub-agent's run ended) replaces its earlier span."""
        of_features = _of_features()
        for activity in sorted(self.execution.activities, key=lambda each: each.event_id):
            add = of_features.get(type(activity.request)) or of_features.get(type(activity.outcome)) or type(self)._add
            add(self, activity)
        return list(self.spans.values())

    def _add(self, activity: Activity) -> None:
        match activity.request, activity.outcome:
            case OpenRun() as request, OpenedRun() as opened:
                self._add_run(activity, request, opened)
            case ModelCall() as request, answer:
                self._add_model_call(activity, request, answer)
            case CallTool() as request, _:
                self.add_tool_call(activity, request)
            case _, RecordedEnd() as end:
                failure = spans.finish_failure(end.error_type) if end.error_type else None
                finish = spans.agent_finish(end.trace, end, self.execution.workflow_type)
                self.put(("finish", end.trace), finish, activity.scheduled, activity.ended, failure)
            case _, RecordedDecision() as recorded:
                self._add_decision(recorded)
            case _, RecordedFailure() as recorded if not self._is_excluded(recorded):
                return  # its span is that of the activity that has failed
            case _, RecordedCall() as recorded if recorded.has_span:
                self.add_record(recorded, activity.ended)

    def put(
        self,
        key: tuple[object, ...],
        definition: SpanDefinition,
        start: float,
        end: float | None,
        failure: SpanFailure | None = None,
        message: str = "",
    ) -> None:
        """Add a span, or replace the one with this key. `message`: what a running one waits for."""
        self.spans[key] = TraceSpan.from_definition(definition, start, end, failure, message)

    def put_activity(
        self, key: tuple[object, ...], activity: Activity, definition: SpanDefinition, failure: SpanFailure | None
    ) -> None:
        """Add the span of what an activity does, with its times."""
        self.put(key, definition, *self._times(activity), failure, self._waits_for(activity))

    def _add_run(self, activity: Activity, request: OpenRun, opened: OpenedRun) -> None:
        trace, at, execution = opened.trace, activity.scheduled, self.execution
        self.agents[trace] = opened.facts
        ids = {"workflow_id": execution.workflow_id, "run_id": execution.run_id}
        run = AgentRun.opened_by(request, request.input, **ids, version=opened.facts.version)
        self.put(("root", trace), spans.invoke_agent(run), at, at)

    def _add_decision(self, recorded: RecordedDecision) -> None:
        trace, step, number = recorded.trace, recorded.step, recorded.question or 0
        call, at = ToolCall(id=recorded.call_id, name=recorded.name, arguments=""), recorded.started
        definition = spans.agent_decision(trace, call, step=step, decision=recorded.decision, question=number)
        decided = spans.decision_time(recorded.decision)
        self.put((trace, "decision", call.id, number), definition, decided, decided)
        if number:
            opened = spans.agent_request(trace, call, step=step, kind="question", question=number)
            self.put((trace, "request", call.id, number), opened, at, at)

    # Model calls

    def _add_model_call(self, activity: Activity, request: ModelCall, answer: Any) -> None:
        trace, step, at = request.where.trace, request.step, activity.scheduled
        chat = spans.chat(trace, ChatAttempt.of(request, activity.attempt, fallback=request.fallback))
        if begins_group(step) and not getattr(request, "failed", 0):
            self.put(("group", trace, step), spans.agent_steps(trace, step), at, at)
        self.put_activity((trace, "chat", step, request.fallback), activity, chat, self.failure(activity))
        if isinstance(answer, ModelAnswer) and activity.ended is not None:
            self.add_calls(request, answer, activity.ended)

    def add_calls(self, request: ModelCall, answer: ModelAnswer, at: float) -> None:
        """Add the calls of an answer, but for those that ran as activities whose input is in history."""
        is_fatal = any(prepared.failure is not None for prepared in answer.prepared)
        for call, prepared in zip(answer.message.tool_calls, answer.prepared, strict=True):
            self._add_prepared_call(request, call, prepared, at, is_fatal=is_fatal)
        if answer.rejected is not None:
            facts = self.agents.get(request.where.trace)
            output = facts.definition.output if facts else None
            call = ToolCall(id=f"answer_{request.step}", name=output.name if output else "answer", arguments="")
            self.add_rejected(request.where.trace, call, request.step, answer.rejected, (at, at))

    def add_rejected(
        self, trace: str, call: ToolCall, step: int, rejected: RejectedAnswer, times: tuple[float, float]
    ) -> None:
        """Add the span of an answer that was not accepted. `call`: by which it is known. `times`: of its inspection."""
        of_call = {"trace": trace, "call_id": call.id, "name": call.name, "step": step, "started": times[0]}
        self.add_record(RecordedCall(**of_call, error=rejected.error, failure=rejected.failure), times[1])

    # Tool calls

    def _add_prepared_call(
        self, request: ModelCall, call: ToolCall, prepared: PreparedCall, at: float, *, is_fatal: bool
    ) -> None:
        trace, step = request.where.trace, request.step
        of_call = {"trace": trace, "call_id": call.id, "name": call.name, "step": step, "started": at}
        record = RecordedCall(**of_call, repaired_by=[repair.by for repair in prepared.repairs])
        decided, failed = self._decisions.get((trace, call.id)), self._failures.get((trace, call.id))
        is_excluded = failed is not None and self._is_excluded(failed)
        if prepared.waits_for is not None and (decided is not None or not is_excluded):
            asked_at = decided.started if decided is not None else at
            definition = spans.agent_request(trace, call, step=step, kind=prepared.waits_for)
            self.put((trace, "request", call.id), definition, asked_at, asked_at)
        if is_excluded:
            return
        if decided is not None and decided.decision.decision != "approve":
            record = record.with_outcome(decided)
            record.started, record.is_unread = decided.started, decided.is_unread
            self.add_record(record, spans.decision_time(decided.decision))
        elif prepared.waits_for is not None and decided is None:
            return
        elif prepared.text is not None or prepared.failure is not None:
            record.error, record.failure = prepared.error, prepared.failure
            self.add_record(record, at)
        elif is_fatal:
            return
        elif self._is_sub_agent(trace, call.name):
            # Where its run ends before the calling run, its record replaces this span.
            end, status = self.execution.closed, self.execution.status
            failure = None if end is None else spans.tool_call_failure(status, "", recovered=False)
            self._put_call(record, end, failure)
        elif (trace, call.id) not in self._scheduled_calls:
            self._add_local_call(record)

    def _is_sub_agent(self, trace: str, name: str) -> bool:
        tool = self.agents[trace].tools.get(name) if trace in self.agents else None
        return tool is not None and tool.agent is not None

    def _is_excluded(self, failed: RecordedFailure) -> bool:
        """Whether a call was not run, so that its record is all that history has of it."""
        return failed.attempts == 0 and (failed.trace, failed.call_id) not in self._scheduled_calls

    def _add_local_call(self, record: RecordedCall) -> None:
        """Add a call that ran as a local activity, of which history contains the result only."""
        if self._local_calls:
            self._add_attempt(self._local_calls.pop(0), record)
        elif self.execution.closed is None:
            self._put_call(record, None, None)

    def add_tool_call(self, activity: Activity, request: CallTool, **fields: Any) -> None:
        """Add a call that ran as an activity. `fields`: further ones of `ToolCallAttempt`."""
        if isinstance(activity.outcome, ToolOutcome) and activity.outcome.questions is not None:
            return  # the activity that continues the call has its span
        self._add_attempt(activity, request.recorded(RecordedCall, started=activity.scheduled), **fields)

    def _add_attempt(self, activity: Activity, record: RecordedCall, **fields: Any) -> None:
        """Add the call of an activity. If its worker was lost, or did not know the agent, another activity says more."""
        record.started, end = self._times(activity)
        record.attempts = activity.attempt
        outcome = self._failures.get((record.trace, record.call_id), activity.outcome)
        if not isinstance(outcome, ToolOutcome):
            failure = self.failure(activity)
            if failure is not None:
                failure = spans.tool_call_failure(failure.kind, failure.text, recovered=False)
            self._put_call(record, end, failure, self._waits_for(activity), **fields)
        elif outcome.deferred is not None:
            self._put_call(record, self.execution.closed, None, "its result", **fields)
        else:
            self.add_record(record.with_outcome(outcome), end, **fields)

    def add_record(self, record: RecordedCall, end: float | None, **fields: Any) -> None:
        """Add the span of a call that has ended, also in place of an earlier one. `fields`: others of `ToolCallAttempt`."""
        fatal, failure = record.failure or record.failure_without_policy, None
        if (error := record.error) is not None:
            recovered = fatal is None and not record.is_unread
            failure = spans.tool_call_failure(error.kind, error.message, recovered=recovered)
        elif fatal is not None:
            kind = str(fatal.get("fields", {}).get("kind") or fatal.get("type"))
            failure = spans.tool_call_failure(kind, str(fatal.get("message", "")), recovered=False)
        self._put_call(record, end, failure, **fields)

    def _put_call(
        self, record: RecordedCall, end: float | None, failure: SpanFailure | None, message: str = "", **fields: Any
    ) -> None:
        """Add the span of a call. `message`: what a running one waits for."""
        trace, decided = record.trace, self._decisions.get((record.trace, record.call_id))
        attempt = ToolCallAttempt(
            call=ToolCall(id=record.call_id, name=record.name, arguments=""),
            step=record.step,
            attempt=record.attempts or 1,
            repaired_by=record.repaired_by,
            decision=record.decision or (decided.decision if decided else None),
            untrusted=record.untrusted,
        )
        attempt = replace(attempt, **record.span_fields | fields)
        definition = spans.tool_call(trace, attempt)
        if not attempt.recorded:  # the contents of such a result are described where its tool ran
            definition.attributes.update(spans.content_attributes(media_of(record.content)))
        key = (trace, "tool", record.step, record.call_id)
        self.put(key, definition, record.started, end, failure, message)

    # Activities

    def _times(self, activity: Activity) -> tuple[float, float | None]:
        """When a worker took the activity, and its end. An activity that is open as the run ends, ends with it."""
        start = activity.scheduled if activity.started is None else activity.started
        end = self.execution.closed if activity.ended is None else activity.ended
        return start, end

    def failure(self, activity: Activity) -> SpanFailure | None:
        """Why an activity failed, or was ended; None if it runs or has completed."""
        if activity.ended is None:
            return None if self.execution.closed is None else SpanFailure(kind=self.execution.status, text="")
        if activity.status == "cancelled":
            return SpanFailure(kind="cancelled", text="The run was cancelled.")
        kind, message = type_and_message(activity.failure)
        return SpanFailure(kind=kind, text=message) if kind else None

    def _waits_for(self, activity: Activity) -> str:
        """What a running activity waits for, and why its last attempt failed."""
        if activity.ended is not None or self.execution.closed is not None:
            return ""
        return ": ".join(filter(None, [activity.waits, type_and_message(activity.failure)[1]]))


def _settles(recorded: RecordedDecision) -> bool:
    """Whether a decision is on the call itself: not the answer to a question of its MCP server, after which it goes on."""
    return recorded.question is None or recorded.decision.decision == "stopped"
