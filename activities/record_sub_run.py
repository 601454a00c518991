"""A sub-agent's call, once its run is over: its span, and what the calling model is told of a run that did not complete.

A local activity: it runs on the calling workflow's own worker, which knows the calling agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity

from mulligan.activities.answers.failure_policy import nearest, settle
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import cut
from mulligan.errors import RemoteSource, ToolCallError, ToolExecutionError, ToolTimeoutError, from_json, shown
from mulligan.observe.spans import ToolCallAttempt
from mulligan.observe.tool_call_span import ToolCallSpan
from mulligan.tool import MAX_RESULT_CHARS
from mulligan.values import ErrorInfo
from mulligan.wire.sub_run import RECORD_SUB_RUN, RecordSubRun, SubRunOutcome

_WHY = {
    "max_steps": "it used up its steps",
    "max_tokens": "it used up its tokens",
    "max_cost": "it used up its budget",
    "max_history": "its history is full",
    "truncated": "its last answer was cut off",
    "refused": "its model refused to answer",
    "stopped": "it was stopped by a person",
    "cancelled": "it was cancelled",
    "terminated": "it was terminated",
}


@dataclass(frozen=True)
class RecordSubRunActivity:
    """The activity, with what the worker gives it."""

    services: Services

    @activity.defn(name=RECORD_SUB_RUN)
    async def record_sub_run(self, ended: RecordSubRun) -> SubRunOutcome:
        """The span of the call, and what the model is told; the next model call finds it held here."""
        agent = self.services.registry.agents.get(ended.where.agent)
        tool = agent.tool(ended.call.name) if agent else None
        outcome = SubRunOutcome(
            attempts=1 if ended.run.run_id else 0,
            trace=ended.where.trace,
            call_id=ended.call.id,
            name=ended.call.name,
            step=ended.step,
            started=ended.started,
            repaired_by=ended.repaired_by,
            sub_run=ended.run.id if ended.run.run_id else "",
        )
        span = self._span(ended, outcome)
        if ended.cancelled:
            error = ErrorInfo(kind="cancelled", message="The run was cancelled.")
            span.fail_attempt(error.kind, error.message, "Cancelled")
            outcome.error, outcome.failure = error, {"type": "Cancelled", "message": error.message}
            return outcome
        if ended.run.status == "completed":
            text = cut(ended.text, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            span.succeed(text)
            outcome.as_given = text == ended.text
            outcome.text = "" if outcome.as_given else text
        else:
            went_wrong = _error(ended)
            policies = tool.handle_errors if tool else None, agent.handle_errors if agent else None
            told = await settle(went_wrong, nearest(went_wrong, *policies), self.services.runtime)
            told.close(span)
            text = cut(told.text, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            outcome.text, outcome.error, outcome.failure = text, told.error, told.failure
        self.services.cache_result(ended.where, ended.call, text, outcome.error)
        return outcome

    def _span(self, ended: RecordSubRun, outcome: SubRunOutcome) -> ToolCallSpan:
        attempt = ToolCallAttempt(
            call=ended.call,
            step=ended.step,
            attempt=outcome.attempts,
            repaired_by=ended.repaired_by,
            decision=ended.decision,
            sub_run=outcome.sub_run,
        )
        return self.services.telemetry.tool_call(ended.where, attempt, arguments=ended.arguments, start=ended.started)


def _error(ended: RecordSubRun) -> ToolCallError:
    """Why the run did not complete, in words for the calling model; its last words, if there are any, are the detail."""
    run, name = ended.run, ended.call.name
    about: dict[str, Any] = {"tool_name": name, "call_id": ended.call.id}
    if run.status == "timed_out":
        limit = f"the {ended.limit:g} s that it may take" if ended.limit else "its time"
        return ToolTimeoutError(
            f"`{name}` did not come to its end within {limit}, so it was ended. What it did until then is done.",
            kind="tool_timeout",
            **about,
        )
    source = from_json(ended.failure) if ended.failure else RemoteSource(run.status, ended.reason)
    detail = ""
    if run.status == "too_deep":
        says = "was not started: agents may not hand work on any deeper than this. Do it without another agent."
    elif run.status == "not_started":
        says = f"was not started: {ended.reason}."
    elif run.status == "failed":
        says = f"failed after it was started: {ended.reason}"
    else:
        steps = f" after {run.steps} step{'s' * (run.steps != 1)}" if run.steps else ""
        says = f"did not complete its work{steps}: {_WHY.get(run.status, f'it ended as {run.status!r}')}."
        detail = f"Its last words: {ended.text}" if ended.text.strip() else ""
    return ToolExecutionError(shown(f"`{name}` {says}"), kind="tool_exception", source=source, detail=detail, **about)
