"""Record the end of a sub-agent's run: the span of its call, and the call's result for the calling model.

A local activity: it runs on the worker of the calling workflow; if that does not serve the calling agent, on another worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import cut
from mulligan.agent import AgentTool
from mulligan.errors import RemoteSource, ToolCallError, ToolExecutionError, ToolTimeoutError, from_json, truncated
from mulligan.sub_agent_output import RefusedOutputError
from mulligan.tool import MAX_RESULT_CHARS, Tool
from mulligan.values import ErrorInfo
from mulligan.wire.sub_agents import RECORD_SUB_RUN, RecordSubRun, SubRunOutcome

_WHY = {
    "max_steps": "it used up its steps",
    "max_tokens": "it used up its tokens",
    "max_cost": "it used up its budget",
    "max_repeats": "it repeated a call that failed",
    "max_history": "its history is full",
    "truncated": "its last answer was cut off",
    "refused": "its model refused to answer",
    "stopped": "it was stopped by a person",
    "cancelled": "it was cancelled",
    "terminated": "it was terminated",
}

_REFUSED = "output_refused"
"""The status, for the calling model, of a run whose answer its caller does not get."""


@dataclass(frozen=True)
class RecordSubRunActivity:
    """The activity `record_sub_run`."""

    services: Services

    @activity.defn(name=RECORD_SUB_RUN)
    async def record_sub_run(self, ended: RecordSubRun) -> SubRunOutcome:
        """Write the span of the call, and return its result. The result stays in memory for the next model call.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        # A cancelled run ends without the agent's policy.
        find = self.services.agents.find
        agent = await (find(ended.where) if ended.cancelled else served_agent(self.services, ended.where))
        tool = agent.tool(ended.call.name) if agent else None
        written, ended = ended.text, _as_caller_gets_it(ended, tool)
        # A run that was not started is no attempt.
        outcome = SubRunOutcome(attempts=1 if ended.run.run_id else 0, untrusted=ended.untrusted)
        span = self.services.telemetry.call_span(
            ended,
            arguments=ended.arguments,
            start=ended.started,
            untrusted=ended.untrusted,
            attempt=outcome.attempts,
            sub_run=ended.run.id if ended.run.run_id else "",
        )
        if ended.run.status in ("too_deep", "too_many"):
            self.services.telemetry.metrics.count_refused_sub_run(ended.where.agent, ended.run.status)
        if ended.cancelled:
            cancelled = ErrorInfo(kind="cancelled", message="The run was cancelled.")
            span.fail_attempt(cancelled.kind, cancelled.message, "Cancelled")
            outcome.error, outcome.failure = cancelled, {"type": "Cancelled", "message": cancelled.message}
            return outcome
        if ended.run.status == "completed":
            text = cut(ended.text, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            span.succeed(text)
            outcome.is_text_unchanged = text == written
            outcome.text = "" if outcome.is_text_unchanged else text
        else:
            policy = policy_for(error := _error(ended), agent=agent, tool=tool)
            failure = await apply_policy(error, policy, self.services.runtime)
            failure.end_span(span)
            text = cut(failure.text, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            outcome.text, outcome.error, outcome.failure = text, failure.error, failure.failure
        self.services.cache_result(ended.where, ended.call, text, outcome.error)
        return outcome


def _as_caller_gets_it(ended: RecordSubRun, tool: Tool | None) -> RecordSubRun:
    """The end of a run without what its caller may not get: from quarantine comes a valid object, or a sentence of ours."""
    hidden: dict[str, Any] = {"text": "", "failure": None, "untrusted": False} if ended.quarantine else {}
    if ended.run.status != "completed":
        if hidden and ended.run.status == "failed":
            hidden["reason"] = "the reason is in its own run."
        return ended.model_copy(update=hidden)
    if not ended.checks_output:
        return ended
    output = tool.output if isinstance(tool, AgentTool) else None
    try:
        if output is None or output.quarantine < ended.quarantine:
            raise RefusedOutputError("the tool is no longer declared with that output")
        text, untrusted = output.read(ended.text), ended.untrusted or output.is_untrusted
        return ended.model_copy(update={"text": text, "untrusted": untrusted})
    except RefusedOutputError as error:
        run = ended.run.model_copy(update={"status": _REFUSED})
        return ended.model_copy(update={**hidden, "run": run, "reason": str(error)})


def _error(ended: RecordSubRun) -> ToolCallError:
    """Why the run did not complete, as the error for the calling model. Its last text, if there is any, is the detail."""
    run, name = ended.run, ended.call.name
    fields: dict[str, Any] = {"tool_name": name, "call_id": ended.call.id}
    if run.status == "timed_out":
        limit = f"the {ended.limit:g} s that it may take" if ended.limit else "its time"
        return ToolTimeoutError(
            f"`{name}` did not come to its end within {limit}, so it was ended. What it did until then is done.",
            kind="tool_timeout",
            **fields,
        )
    source = from_json(ended.failure) if ended.failure else RemoteSource(run.status, ended.reason)
    detail = ""
    if run.status == "too_deep":
        reason = "was not started: agents may not hand work on any deeper than this. Do it without another agent."
    elif run.status == "too_many":
        reason = (
            "was not started: this run and the agents that it hands work to have started as many agents as they may. "
            "Do the rest without another agent."
        )
    elif run.status == "not_started":
        reason = f"was not started: {ended.reason}."
    elif run.status == _REFUSED:
        reason = f"has worked, but {ended.reason}, so you get nothing of it."
    elif run.status == "failed":
        reason = f"failed after it was started: {ended.reason}"
    else:
        steps = f" after {run.steps} step{'s' * (run.steps != 1)}" if run.steps else ""
        reason = f"did not complete its work{steps}: {_WHY.get(run.status, f'it ended as {run.status!r}')}."
        detail = f"Its last words: {ended.text}" if ended.text.strip() else ""
    return ToolExecutionError(
        truncated(f"`{name}` {reason}"), kind="tool_exception", source=source, detail=detail, **fields
    )
