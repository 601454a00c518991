"""Run one valid call of a tool. An attempt fails only if another may follow, or if its worker is lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Any

from opentelemetry import trace
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers import feedback
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.answers.feedback import Target
from mulligan.activities.heartbeat import Heartbeat, heartbeating, lost_attempts
from mulligan.activities.mcp.ask_by_update import ask_by_update
from mulligan.activities.mcp.servers import NeedsPersonError
from mulligan.activities.services import Services
from mulligan.activities.tool_running.isolated import ProcessDied
from mulligan.activities.tool_running.render_result import MAX_BYTES, UnusableResult, cut
from mulligan.activities.tool_running.thread_bounds import TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.activities.tool_running.tool_result import ToolResult, UnusableContent, plain_result, tool_result
from mulligan.agent import Agent
from mulligan.client.callback_tokens import call_of
from mulligan.content import described, media_of
from mulligan.errors import ToolCallError, ToolExecutionError, ToolTimeoutError, truncated
from mulligan.mcp import McpError
from mulligan.observe.spans import ToolCallAttempt
from mulligan.observe.tool_call_span import ToolCallSpan, span_of_run
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.exception_group import all_causes, causes
from mulligan.tool import MAX_RESULT_CHARS, Tool, ToolContext, ToolError, UntilTime, isolated_call
from mulligan.values import Decision, ToolCall
from mulligan.wire.tool_call import CALL_TOOL, CallTool, Deferral, ToolOutcome

_log = logging.getLogger(__name__)
_SHUT_DOWN = "The tool's worker shut down before it was done."


@dataclass(frozen=True)
class CallToolActivity:
    """The activity `call_tool`."""

    services: Services

    @activity.defn(name=CALL_TOOL)
    async def call_tool(self, request: CallTool) -> ToolOutcome:
        """Run the tool, and keep its result in this worker's memory for the next model call.

        Raises:
            ApplicationError: this attempt failed, and the tool's declaration allows another one; or this worker does not
                serve the agent.
        """
        outcome = await self._run_attempt(request)
        # A worker that does not know the agent never calls its model, so nothing there would read the result.
        is_settled = outcome.failure_without_policy is None and outcome.questions is None and outcome.deferred is None
        is_known = request.where.version is not None or request.where.agent in self.services.registry.agents
        if is_settled and not request.in_script and is_known:
            self.services.cache_result(request.where, request.call, outcome.text, outcome.error, outcome.content)
        if is_settled and request.after_untrusted:
            outcome.untrusted = True
        return outcome

    async def _run_attempt(self, request: CallTool) -> ToolOutcome:
        services, attempt = self.services, activity.info().attempt
        agent = await services.agents.find(request.where)
        tool = services.tools.find(agent, request.call.name, mcp=request.mcp)
        if agent is None and tool is None and not request.has_own_queue:
            await served_agent(services, request.where)
        may_retry = tool is not None and attempt < tool.attempts
        self._record_lost_attempts(request, tool)
        span = self._start_span(request, tool, attempt, request.decision)
        try:
            async with heartbeating() as heartbeat:
                if tool is None:
                    raise self._tool_gone(request, agent, attempt)
                result = await self._run(request, agent, tool, heartbeat, span)
        except NeedsPersonError as asked:
            # No span: the call goes on, and the question has spans of its own (record_decision.py).
            return ToolOutcome(questions=asked.questions, attempts=attempt)
        except ToolCallError as error:
            if tool is not None and may_retry and _is_retried(tool, error):
                span.fail_attempt(error.kind, error.message, type_name(error.source or error))
                # Without its cause: a tool's exception may have any number of causes, and itself among them.
                raise ApplicationError(truncated(error.message), type=error.kind) from None
            return await self._failed(agent, tool, error, span, request.max_bytes)
        except ApplicationError:  # the worker shuts down
            if may_retry:
                span.fail_attempt("tool_lost", _SHUT_DOWN, "WorkerShutdown")
            raise
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.cancel_requested:
                span.fail_attempt("cancelled", "The run was cancelled.", "Cancelled")
            # Otherwise Temporal has given this attempt up: the next attempt writes the span of it.
            raise
        if isinstance(result, Deferral):
            # No span: it is written when the call has its result (settle_deferred.py).
            return ToolOutcome(deferred=result, attempts=attempt)
        span.succeed(result.text, media_of(result.content))
        return ToolOutcome(
            text=result.text,
            content=result.content,
            attempts=attempt,
            untrusted=tool.trust == "untrusted",
            is_cut=result.is_cut,
        )

    def _record_lost_attempts(self, request: CallTool, tool: Tool | None) -> None:
        """Write the spans of earlier attempts whose workers died before they could write them."""
        for attempt in lost_attempts():
            start = activity.info().scheduled_time.timestamp()
            span = self._start_span(request, tool, attempt, start=start)
            span.lose()

    def _tool_gone(self, request: CallTool, agent: Agent | None, attempt: int) -> ToolCallError:
        """Log that a valid call cannot run, and return the error for it."""
        decision, approved = request.decision, ""
        if decision is not None and decision.decision == "approve":
            approved = f"approved by {decision.by or 'somebody'}, "
        _log.warning(
            "The tool %r is gone: the valid call %s of %s, %swas not run, and the model is told so.",
            request.call.name, request.call.id, request.where.agent, approved,
        )  # fmt: skip
        if agent is not None and agent.is_of_run:
            return feedback.tool_gone(request.call)
        # This worker has other code than the worker that prepared the call: the tool has a task queue of its own, or a
        # rolling deploy is under way.
        names = [known.name for known in agent.listed_tools] if agent else sorted(self.services.registry.tools)
        return feedback.tool_missing_on_worker(request.call, activity.info().task_queue, names, attempt=attempt)

    def _start_span(
        self,
        request: CallTool,
        tool: Tool | None,
        attempt: int,
        decision: Decision | None = None,
        start: float | None = None,
    ) -> ToolCallSpan:
        described = ToolCallAttempt(
            call=request.call,
            step=request.step,
            attempt=attempt,
            repaired_by=request.repaired_by,
            mcp_server=tool.mcp_server if tool else None,
            decision=decision,
            untrusted=request.after_untrusted or (tool is not None and tool.trust == "untrusted"),
        )
        return self.services.telemetry.tool_call(request.where, described, arguments=request.arguments, start=start)

    async def _run(
        self, request: CallTool, agent: Agent | None, tool: Tool, heartbeat: Heartbeat, span: ToolCallSpan
    ) -> ToolResult | Deferral:
        """Run the tool's function within its time limit; returns its result as the model gets it, or what it has started.

        Raises:
            ToolCallError: the function failed.
        """
        call, services, attempt = request.call, self.services, activity.info().attempt
        try:
            arguments = await _validated(tool, request.arguments)
        except BaseException as error:
            reason = error if isinstance(error, Exception) else RuntimeError(type_name(error))
            target = Target(tool.name, tool.arguments)
            raise target.not_valid(call, request.arguments, reason, attempt=attempt) from error
        args, kwargs = tool.arguments.bind(arguments, await self._context(request, agent, tool, heartbeat))
        limit = tool.timeout.total_seconds()
        try:
            # The tool's own spans are children of its call's; of a deferred one's run's, as its call may take days.
            parent = span_of_run(request.where) if tool.traits.ends_elsewhere else span.span
            with trace.use_span(parent, record_exception=False, set_status_on_exception=False):
                if tool.isolated:
                    function, bound_args, bound_kwargs = isolated_call(tool.function)
                    args, kwargs = [*bound_args, *args], {**bound_kwargs, **kwargs}
                    env = tool.isolated_env
                    value = await services.child_processes.run_tool(function or "", args, kwargs, limit=limit, env=env)
                else:
                    value = await services.runtime.run(tool.function, args, kwargs, limit=limit, read=plain_result)
            result = await self._result(request, tool, value)
            return _deferral(tool, value, result) if tool.traits.ends_elsewhere else result
        except BaseException as error:
            if isinstance(error, NeedsPersonError):
                raise
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            # SystemExit too: a tool that calls exit() must not end the worker.
            raise _tool_error(error, tool, call, attempt) from error

    async def _result(self, request: CallTool, tool: Tool, value: Any) -> ToolResult:
        contents = self.services.contents_of(request.where)
        most_chars = MAX_BYTES if request.in_script else tool.max_result_chars
        try:
            return await tool_result(value, contents, max_chars=most_chars, max_bytes=request.max_bytes)
        except UnusableContent as error:
            if tool.mcp_server is None:
                raise
            # Nobody here can change what a server returns: the model gets what can be read of it.
            text = f"{described(value)}\n[The call ran. Its result is shown as text: {error_text(error)}]"
            return await tool_result(text, contents, max_chars=most_chars, max_bytes=request.max_bytes)

    async def _context(self, request: CallTool, agent: Agent | None, tool: Tool, heartbeat: Heartbeat) -> ToolContext:
        call, resources = request.call, self.services.resources
        heartbeat.report_for(call.id, call.name, request.step)
        context = tool_context(
            request.where,
            call,
            step=request.step,
            digest=request.digest,
            first_key=request.first_key,
            metadata=request.metadata,
            resources=resources.of_agent(agent.name, tool.name) if agent else resources.of_tool(tool.name),
            attempt=activity.info().attempt,
            heartbeat=heartbeat.send_details,
        )
        if request.pinned:
            context = replace(context, pinned=request.pinned)
        if tool.traits.ends_elsewhere:
            context = replace(context, callback_token=await self._callback_token(request))
        if tool.asks:
            ask = ask_by_update(request.where.conversation, call.id)
            context = replace(context, _ask=ask, _replies=request.replies)
        return context

    async def _callback_token(self, request: CallTool) -> str:
        workflow_id = activity.info().workflow_id or ""
        return await self.services.callback_tokens.seal(call_of(request.where, workflow_id, request.call.id))

    async def _failed(
        self, agent: Agent | None, tool: Tool | None, error: ToolCallError, span: ToolCallSpan, max_bytes: int | None
    ) -> ToolOutcome:
        attempts = activity.info().attempt
        if agent is None and (tool is None or tool.handle_errors is None):
            # The agent's own worker knows the policy: `record_failed_call` applies it there, and writes the span.
            return ToolOutcome(
                failure_without_policy={**error.to_json(), "detail": truncated(error.detail)}, attempts=attempts
            )
        failure = await apply_policy(error, policy_for(error, agent=agent, tool=tool), self.services.runtime)
        failure.end_span(span)
        text = cut(failure.text, tool.max_result_chars if tool else MAX_RESULT_CHARS, max_bytes)
        untrusted = tool is not None and tool.trust == "untrusted"
        return ToolOutcome(
            text=text, error=failure.error, failure=failure.failure, attempts=attempts, untrusted=untrusted
        )


async def _validated(tool: Tool, arguments: JsonValue) -> Any:
    validate = tool.arguments.validate
    return await asyncio.to_thread(validate, arguments) if tool.arguments.blocks else validate(arguments)


def _deferral(tool: Tool, value: object, result: ToolResult) -> Deferral:
    """Read what a deferred tool has started from what it returned."""
    if isinstance(value, UntilTime):
        return Deferral(text="", until=value.at)
    return Deferral(text=result.text, timeout=tool.traits.time_elsewhere)


def _tool_error(error: BaseException, tool: Tool, call: ToolCall, attempt: int) -> ToolCallError:
    """The typed error for what the tool's function raised."""
    name, fields = tool.name, {"tool_name": tool.name, "call_id": call.id}
    source: BaseException | None = error
    kind = "tool_exception"
    match error:
        case TooManyThreads():
            return ToolTimeoutError(f"`{name}` {error_text(error)}", kind="tool_timeout", source=error, **fields)
        case TookTooLong():
            times = f" on each of {tool.attempts} attempts" if attempt > 1 else ""
            return ToolTimeoutError(
                f"`{name}` did not finish within {error.limit:g} s{times}, so it was given up. "
                "It may or may not have done its work.",
                kind="tool_timeout",
                source=error,
                **fields,
            )
        case UnusableContent():
            kind, message = "invalid_result", f"`{name}` ran, but its result cannot be used: {error_text(error)}"
        case UnusableResult():
            kind, message = "invalid_result", f"`{name}` ran, but its result cannot be written as JSON: {error}."
        case ToolError():
            kind, message = "tool_error", cut(error_text(error), tool.max_result_chars)
        case ProcessDied():
            message = f"`{name}` did not finish: {error}."
        case McpError():
            message = cut(error_text(error), tool.max_result_chars)
        case asyncio.CancelledError():
            source, message = None, f"`{name}` was cancelled by its own code."
        case BaseExceptionGroup() if all_causes(error, lambda each: isinstance(each, ToolError)):
            kind, message = "tool_error", cut("\n".join(map(error_text, causes(error))), tool.max_result_chars)
        case _:
            reason = f": {text}" if (text := error_text(error)) else ""
            message = cut(f"`{name}` raised {type_name(error)}{reason}", tool.max_result_chars)
    return ToolExecutionError(message, kind=kind, source=source, **fields)


def _is_retried(tool: Tool, error: ToolCallError) -> bool:
    """Whether the tool's declaration retries after this error: timeouts, and the exceptions of `retry_on`."""
    if error.kind == "tool_timeout":
        return True
    return error.source is not None and all_causes(error.source, lambda each: isinstance(each, tool.retry_on))
