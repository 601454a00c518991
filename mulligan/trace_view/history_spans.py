"""Rebuilds a run's spans from Temporal's history, by the definitions (`mulligan/observe/spans.py`) that workers use.

A history does not contain all spans: attempts before an activity's last one, the tokens of single model calls, and the
models that repair arguments are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from mulligan.content import Media, media_of
from mulligan.errors import error_of
from mulligan.features import parts
from mulligan.model_name import ModelName
from mulligan.observe import spans
from mulligan.observe.spans import AgentRun, ChatAttempt, RunSummary, SpanFailure, ToolCallAttempt
from mulligan.observe.trace_ids import begins_group
from mulligan.trace_view.history_events import Activity, Execution, type_and_message
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.values import Decision, ToolCall, Usage
from mulligan.wire.agent_facts import AgentFacts, OpenedRun, OpenRun
from mulligan.wire.model_call import ConversationRequest, ModelAnswer, ModelCall, PreparedCall
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.tool_call import CALL_TOOL, CallTool, RecordedCall, RecordedFailure, ToolOutcome
from mulligan.wire.updates import RecordedDecision

_OF_FEATURES: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {
    kind: add for part in parts("trace_view") for kind, add in part.ADD_SPANS.items()
}
"""What adds the spans of an activity of a feature, by the class of its input or its result."""


def spans_of(executions: Sequence[Execution]) -> list[TraceSpan]:
    """The spans of a chain of workflow runs, the first one first."""
    turns = _Turns()
    return [span for execution in executions for span in ExecutionSpans(execution, turns).rebuild()]


class _Turns:
    """The turns of the chain by their trace. The history of `finish_run` does not contain the turn that it ends."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.outputs: dict[str, str] = {}
        """The names of the turns' outputs; "" for text."""
        self.sub_agents: dict[str, set[str]] = {}
        """The names of the tools that are sub-agents."""
        self._latest: dict[str, int] = {}
        """For each open turn the number of its latest activity."""
        self._activities = 0

    def open(self, trace: str, number: int, facts: AgentFacts) -> None:
        """Note that a turn begins."""
        self.numbers[trace] = number
        self.take_agent(trace, facts)
        self.touch(trace)

    def take_agent(self, trace: str, facts: AgentFacts) -> None:
        """Note which agent has the conversation of a turn from now on."""
        self.outputs[trace] = facts.definition.output.name if facts.definition.output else ""
        self.sub_agents[trace] = {name for name, tool in facts.tools.items() if tool.agent is not None}

    def touch(self, trace: str) -> None:
        """An activity of the turn follows."""
        self._activities += 1
        self._latest[trace] = self._activities

    def close(self) -> str | None:
        """The turn that ends now: the open one with the latest activity. None if no turn is open."""
        trace = max(self._latest, key=lambda each: self._latest[each], default=None)
        if trace is not None:
            del self._latest[trace]
        return trace


@dataclass(frozen=True, kw_only=True)
class _CallResult:
    """How an attempt of a tool call went. `end` is None while it runs; `message`: what a running call waits for."""

    start: float
    end: float | None
    attempt: int = 1
    failure: SpanFailure | None = None
    message: str = ""
    media: Sequence[Media] = ()
    untrusted: bool = False


class ExecutionSpans:
    """The spans of one workflow run."""

    def __init__(self, execution: Execution, turns: _Turns) -> None:
        self.execution = execution
        self._turns = turns
        self.spans: dict[tuple[str, ...], TraceSpan] = {}
        # The workflow's order: the SDK's numbers count up as the workflow schedules activities.
        local = sorted((each for each in execution.activities if each.local), key=lambda each: each.sequence)
        self._local_calls = [activity for activity in local if activity.type == CALL_TOOL]
        self._failures = {
            (activity.outcome.trace, activity.outcome.call_id): activity
            for activity in execution.activities
            if isinstance(activity.outcome, RecordedFailure)
        }
        self.decisions = {
            (activity.outcome.trace, activity.outcome.call_id): activity.outcome
            for activity in local
            if isinstance(activity.outcome, RecordedDecision) and _settles(activity.outcome)
        }
        self._scheduled_calls = {
            (activity.request.where.trace, activity.request.call.id)
            for activity in execution.activities
            if isinstance(activity.request, CallTool)
        }

    def rebuild(self) -> list[TraceSpan]:
        """All spans. A later record of a call (it was lost, or its sub-agent's run ended) replaces its earlier span."""
        for activity in sorted(self.execution.activities, key=lambda each: each.event_id):
            self._add(activity)
        return list(self.spans.values())

    def _add(self, activity: Activity) -> None:
        request, outcome = activity.request, activity.outcome
        if isinstance(request, (ConversationRequest, CallTool)):
            self._turns.touch(request.where.trace)
        of_feature = _OF_FEATURES.get(type(request)) or _OF_FEATURES.get(type(outcome))
        if of_feature is not None:
            of_feature(self, activity)
        elif isinstance(request, OpenRun):
            self._add_run(activity, request)
        elif isinstance(request, ModelCall):
            self._add_model_call(activity, request)
        elif isinstance(request, CallTool):
            self.add_tool_call(activity, request)
        elif activity.type == FINISH_RUN:
            self._add_finish(activity)
        elif isinstance(outcome, RecordedFailure) and self._is_excluded(outcome):
            self.add_recorded_call(outcome, activity.ended)
        elif isinstance(outcome, RecordedDecision):
            call = ToolCall(id=outcome.call_id, name=outcome.name, arguments="")
            number = outcome.question or 0
            definition = spans.agent_decision(
                outcome.trace, call, step=outcome.step, decision=outcome.decision, question=number
            )
            at = spans.decision_time(outcome.decision)
            self.spans[outcome.trace, "decision", call.id, str(number)] = TraceSpan.from_definition(definition, at, at)
            if number:
                opened = spans.agent_request(outcome.trace, call, step=outcome.step, kind="question", question=number)
                start = outcome.started
                self.spans[outcome.trace, "request", call.id, str(number)] = TraceSpan.from_definition(
                    opened, start, start
                )

    def _add_run(self, activity: Activity, request: OpenRun) -> None:
        if not isinstance(activity.outcome, OpenedRun):
            return
        trace = activity.outcome.trace
        self._turns.open(trace, request.turn, activity.outcome.facts)
        run = AgentRun(
            agent=request.agent,
            workflow_id=self.execution.workflow_id,
            run_id=self.execution.run_id,
            first_run_id=request.first_run_id,
            conversation=request.conversation,
            turn=request.turn,
            parent=request.parent,
            metadata=request.input.metadata if request.input else {},
            call_id=request.call_id,
            resumed_from=request.input.resumed_from if request.input else None,
            forked_from=request.input.forked_from if request.input else None,
            version=activity.outcome.facts.version,
        )
        at = activity.scheduled
        self.spans["root", trace] = TraceSpan.from_definition(spans.invoke_agent(run), at, at)

    def _add_model_call(self, activity: Activity, request: ModelCall) -> None:
        trace, step = request.where.trace, request.step
        if begins_group(step) and not getattr(request, "failed", 0):
            at = activity.scheduled
            self.spans["group", trace, str(step)] = TraceSpan.from_definition(spans.agent_steps(trace, step), at, at)
        attempt = ChatAttempt(
            model=ModelName.parse(request.model).name, step=step, attempt=activity.attempt, fallback=request.fallback
        )
        key = (trace, "chat", str(step), str(request.fallback))
        self.spans[key] = self.chat(activity, trace, attempt, self.failure(activity))
        if isinstance(activity.outcome, ModelAnswer) and activity.ended is not None:
            self.add_calls(request, activity.outcome, activity.ended)

    def chat(self, activity: Activity, trace: str, attempt: ChatAttempt, failure: SpanFailure | None) -> TraceSpan:
        """The span of an activity that calls a model."""
        start, end = self._times(activity)
        definition = spans.chat(trace, attempt)
        return TraceSpan.from_definition(definition, start, end, failure, self._waits_for(activity))

    def add_calls(self, request: ModelCall, answer: ModelAnswer, at: float) -> None:
        """Add the calls of an answer, but for those that ran as activities whose input is in history."""
        is_fatal = any(prepared.failure is not None for prepared in answer.prepared)
        for call, prepared in zip(answer.message.tool_calls, answer.prepared, strict=True):
            self._add_prepared_call(request, call, prepared, at, is_fatal=is_fatal)
        if answer.rejected is not None:
            name = self._turns.outputs.get(request.where.trace) or "answer"
            call = ToolCall(id=f"answer_{request.step}", name=name, arguments="")
            outcome = ToolOutcome(error=answer.rejected.error, failure=answer.rejected.failure)
            self._put_call(request, call, [], self._result(outcome, at, at))

    def _add_prepared_call(
        self, request: ModelCall, call: ToolCall, prepared: PreparedCall, at: float, *, is_fatal: bool
    ) -> None:
        trace = request.where.trace
        repaired_by = [repair.by for repair in prepared.repairs]
        recorded, failed = self.decisions.get((trace, call.id)), self._failures.get((trace, call.id))
        is_excluded = failed is not None and self._is_excluded(failed.outcome)
        if prepared.waits_for is not None and (recorded is not None or not is_excluded):
            asked_at = recorded.started if recorded is not None else at
            definition = spans.agent_request(trace, call, step=request.step, kind=prepared.waits_for)
            self.spans[trace, "request", call.id] = TraceSpan.from_definition(definition, asked_at, asked_at)
        if is_excluded:
            return
        if recorded is not None and recorded.decision.decision != "approve":
            end = spans.decision_time(recorded.decision)
            self._put_call(request, call, repaired_by, self._result(recorded, recorded.started, end))
        elif prepared.waits_for is not None and recorded is None:
            return
        elif prepared.text is not None or prepared.failure is not None:
            outcome = ToolOutcome(error=prepared.error, failure=prepared.failure)
            self._put_call(request, call, repaired_by, self._result(outcome, at, at))
        elif is_fatal:
            return
        elif call.name in self._turns.sub_agents.get(trace, ()):
            self._add_open_sub_run(request, call, repaired_by, at)
        elif (trace, call.id) not in self._scheduled_calls:
            self._add_local_call(request, call, repaired_by, at)

    def _add_open_sub_run(self, request: ModelCall, call: ToolCall, repaired_by: list[str], at: float) -> None:
        """Add the call of a sub-agent. Where its run ends before the calling run, its record replaces this span."""
        failure = None
        if self.execution.closed is not None:
            failure = spans.tool_call_failure(self.execution.status, "", recovered=False)
        self._put_call(request, call, repaired_by, _CallResult(start=at, end=self.execution.closed, failure=failure))

    def _is_excluded(self, outcome: RecordedFailure) -> bool:
        """Whether a call was not run, so that its record is all that history has of it."""
        return outcome.attempts == 0 and (outcome.trace, outcome.call_id) not in self._scheduled_calls

    def add_recorded_call(
        self, outcome: RecordedCall, ended: float | None, *, is_over: bool = False, **more: Any
    ) -> None:
        """Add a call of which only its record is in history, or in place of the span that its activity has added.

        `is_over`: the model never reads its result. `more`: fields of `ToolCallAttempt` in place of the record's.
        """
        attempt = ToolCallAttempt(
            call=ToolCall(id=outcome.call_id, name=outcome.name, arguments=""),
            step=outcome.step,
            attempt=outcome.attempts or 1,
            repaired_by=outcome.repaired_by,
            decision=outcome.decision,
            untrusted=outcome.untrusted,
        )
        failure = None
        if (error := outcome.error) is not None:
            recovered = outcome.failure is None and not is_over
            failure = spans.tool_call_failure(error.kind, error.message, recovered=recovered)
        result = _CallResult(start=outcome.started, end=ended, failure=failure)
        self._put_attempt(outcome.trace, replace(attempt, **more), result)

    def _add_local_call(self, request: ModelCall, call: ToolCall, repaired_by: list[str], at: float) -> None:
        """Add a call that ran as a local activity, of which history contains the result only."""
        if self._local_calls:
            activity = self._local_calls.pop(0)
            self._put_call(request, call, repaired_by, self._activity_result(activity, request.where.trace, call))
        elif self.execution.closed is None:
            self._put_call(request, call, repaired_by, _CallResult(start=at, end=None))

    def add_agent(self, trace: str, facts: AgentFacts) -> None:
        """Another agent has taken the conversation over."""
        self._turns.take_agent(trace, facts)

    def add_tool_call(self, activity: Activity, request: CallTool, **more: Any) -> None:
        """Add a call that ran as an activity. `more`: further fields of `ToolCallAttempt`."""
        if isinstance(activity.outcome, ToolOutcome) and activity.outcome.questions is not None:
            return  # the activity that continues the call has its span
        result = self._activity_result(activity, request.where.trace, request.call)
        self._put_call(request, request.call, request.repaired_by, result, **more)

    def _activity_result(self, activity: Activity, trace: str, call: ToolCall) -> _CallResult:
        """How the call of an activity went. If its worker was lost, or did not know the agent, another activity says."""
        start, end = self._times(activity)
        record = self._failures.get((trace, call.id), activity)
        if isinstance(record.outcome, ToolOutcome) and record.outcome.deferred is not None:
            return _CallResult(start=start, end=self.execution.closed, attempt=activity.attempt, message="its result")
        if isinstance(record.outcome, ToolOutcome):
            return self._result(record.outcome, start, end)
        failure = self.failure(record)
        if failure is not None:
            failure = spans.tool_call_failure(failure.kind, failure.text, recovered=False)
        message = self._waits_for(record)
        return _CallResult(start=start, end=end, attempt=activity.attempt, failure=failure, message=message)

    def _result(self, outcome: ToolOutcome, start: float, end: float | None) -> _CallResult:
        """A call's result by its recorded outcome."""
        fatal = outcome.failure or outcome.failure_without_policy
        failure = None
        # The model never reads the result of a call that was stopped.
        is_stopped = isinstance(outcome, RecordedDecision) and outcome.decision.decision == "stopped"
        if outcome.error is not None:
            recovered = fatal is None and not is_stopped
            failure = spans.tool_call_failure(outcome.error.kind, outcome.error.message, recovered=recovered)
        elif fatal is not None:
            kind = str(fatal.get("fields", {}).get("kind") or fatal.get("type"))
            failure = spans.tool_call_failure(kind, str(fatal.get("message", "")), recovered=False)
        media = media_of(outcome.content)
        return _CallResult(
            start=start,
            end=end,
            attempt=outcome.attempts or 1,
            failure=failure,
            media=media,
            untrusted=outcome.untrusted,
        )

    def _put_call(
        self,
        request: ModelCall | CallTool,
        call: ToolCall,
        repaired_by: list[str],
        result: _CallResult,
        **more: Any,
    ) -> None:
        trace = request.where.trace
        recorded = self.decisions.get((trace, call.id))
        decision: Decision | None = recorded.decision if recorded else None
        attempt = ToolCallAttempt(
            call=call,
            step=request.step,
            attempt=result.attempt,
            repaired_by=repaired_by,
            decision=decision,
            untrusted=result.untrusted,
            **more,
        )
        self._put_attempt(trace, attempt, result)

    def _put_attempt(self, trace: str, attempt: ToolCallAttempt, result: _CallResult) -> None:
        definition = spans.tool_call(trace, attempt)
        definition.attributes.update(spans.content_attributes(result.media))
        key = (trace, "tool", str(attempt.step), attempt.call.id)
        self.spans[key] = TraceSpan.from_definition(
            definition, result.start, result.end, result.failure, result.message
        )

    def _add_finish(self, activity: Activity) -> None:
        trace = self._turns.close()
        if trace is None:
            return
        execution = self.execution
        turn, failure = self._turns.numbers.get(trace, 1), None
        summary = RunSummary(turn=turn, workflow_type=execution.workflow_type)
        if execution.workflow_type == AGENT_WORKFLOW:
            result = execution.result if isinstance(execution.result, dict) else {}
            summary = RunSummary(
                turn=turn,
                workflow_type=execution.workflow_type,
                status=result.get("status") or execution.status,
                steps=result.get("steps"),
                recovered_failures=result.get("recovered_failures"),
                usage=_usage(result.get("usage")),
                cost=result.get("cost"),
            )
            if execution.failure is not None:
                typed = error_of(execution.failure)
                error_type = getattr(typed, "kind", None) or type(typed or execution.failure).__name__
                failure = spans.finish_failure(error_type)
        definition = spans.agent_finish(trace, summary)
        self.spans["finish", trace] = TraceSpan.from_definition(definition, activity.scheduled, activity.ended, failure)

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


def _usage(recorded: Any) -> Usage | None:
    try:
        return Usage.model_validate(recorded)
    except ValidationError:
        return None


def _settles(recorded: RecordedDecision) -> bool:
    """Whether a decision is on the call itself: not the answer to a question of its MCP server, after which it goes on."""
    return recorded.question is None or recorded.decision.decision == "stopped"
