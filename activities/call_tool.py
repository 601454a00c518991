"""Run one valid call of a tool: an outcome, whatever the tool does. Only a lost worker is left for Temporal to see."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.answers import feedback
from mulligan.activities.answers.failure_policy import nearest, settle
from mulligan.activities.answers.feedback import Target
from mulligan.activities.heartbeat import Heartbeat, heartbeating, previous_attempt_was_lost
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import UnusableResult, cut, render
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.activities.tool_running.tool_runtime import TookTooLong
from mulligan.agent import Agent
from mulligan.errors import ToolCallError, ToolExecutionError, ToolTimeoutError, shown
from mulligan.mcp import McpError
from mulligan.observe.spans import ToolCallAttempt
from mulligan.observe.tool_call_span import ToolCallSpan
from mulligan.tool import MAX_RESULT_CHARS, Tool, ToolError
from mulligan.wire.tool_call import CALL_TOOL, CallTool, ToolOutcome

_SHUT_DOWN = "The tool's worker shut down before it was done."


@dataclass(frozen=True)
class CallToolActivity:
    """The activity, with what the worker gives it."""

    services: Services

    @activity.defn(name=CALL_TOOL)
    async def call_tool(self, order: CallTool) -> ToolOutcome:
        """Run the tool, and hold its result for the next model call."""
        outcome = await self._attempt(order)
        if outcome.unsettled is not None:
            return outcome
        # A worker that does not know the agent never calls its model, so the result would not be used here.
        if order.where.agent in self.services.registry.agents:
            self.services.cache_result(order.where, order.call, outcome.text, outcome.error)
        return outcome

    async def _attempt(self, order: CallTool) -> ToolOutcome:
        """Run the tool, within its time.

        Raises:
            ApplicationError: this attempt failed, and the tool's declaration wants another one.
        """
        info = activity.info()
        agent = self.services.registry.agents.get(order.where.agent)
        tool = self.services.tools.find(order.where.agent, order.call.name, mcp=order.mcp)
        another = tool is not None and info.attempt < tool.attempts
        self._record_a_lost_attempt(order, tool)
        attempt = ToolCallAttempt(
            call=order.call,
            step=order.step,
            attempt=info.attempt,
            repaired_by=order.repaired_by,
            mcp_server=tool.mcp_server if tool else None,
            decision=order.decision,
        )
        span = self.services.telemetry.tool_call(order.where, attempt, arguments=order.arguments)
        try:
            async with heartbeating() as heart:
                text = await self._run(order, agent, tool, heart, span)
        except ToolCallError as error:
            if another and tool is not None and _wants_another(tool, error):
                span.fail_attempt(error.kind, error.message, _name(error))
                raise ApplicationError(error.message, type=error.kind) from error
            return await self._told(agent, tool, error, span, order.max_bytes)
        except ApplicationError:  # the worker shuts down
            if another:
                span.fail_attempt("tool_lost", _SHUT_DOWN, "WorkerShutdown")
            raise
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.cancel_requested:
                span.fail_attempt("cancelled", "The run was cancelled.", "Cancelled")
            # Else Temporal has given this attempt up, and said so in its own way: no span of it may come late.
            raise
        span.succeed(text)
        return ToolOutcome(text=text, attempts=info.attempt)

    def _record_a_lost_attempt(self, order: CallTool, tool: Tool | None) -> None:
        """The span of the attempt before this one, if it could not write its own: its worker died, or was cut off."""
        info = activity.info()
        if not previous_attempt_was_lost():
            return
        attempt = ToolCallAttempt(
            call=order.call,
            step=order.step,
            attempt=info.attempt - 1,
            repaired_by=order.repaired_by,
            mcp_server=tool.mcp_server if tool else None,
        )
        start = info.scheduled_time.timestamp()
        lost = self.services.telemetry.tool_call(order.where, attempt, arguments=order.arguments, start=start)
        lost.fail_attempt("tool_lost", "Its worker died, or stopped answering.", "WorkerLost")

    async def _run(
        self, order: CallTool, agent: Agent | None, tool: Tool | None, heart: Heartbeat, span: ToolCallSpan
    ) -> str:
        call = order.call
        if tool is None:
            # A worker with other code than the one that prepared the call: a queue of its own, or a rolling deploy.
            there = [known.name for known in agent.tools] if agent else sorted(self.services.registry.tools)
            raise feedback.not_there(call, activity.info().task_queue, there)
        resources = self.services.resources
        about: dict[str, Any] = {"tool_name": tool.name, "call_id": call.id}
        try:
            arguments = tool.arguments.validate(order.arguments)
        except Exception as error:
            raise Target(tool.name, tool.arguments).not_valid(call, order.arguments, error) from error
        attempt = activity.info().attempt
        context = tool_context(
            order.where,
            call,
            step=order.step,
            metadata=order.metadata,
            resources=resources.of_agent(agent.name) if agent else resources.of_tool(tool.name),
            attempt=attempt,
            heartbeat=heart.send_details,
        )
        args, kwargs = tool.arguments.bind(arguments, context)
        limit = tool.timeout.total_seconds()
        try:
            # The tool's own spans hang below its call's.
            with trace.use_span(span.span, record_exception=False, set_status_on_exception=False):
                value = await self.services.runtime.run(tool.function, args, kwargs, limit=limit)
            return cut(render(value), tool.max_result_chars, order.max_bytes)
        except TookTooLong as error:
            times = f" on each of {tool.attempts} attempts" if attempt > 1 else ""
            raise ToolTimeoutError(
                f"`{tool.name}` did not finish within {error.limit:g} s{times}, so it was given up. "
                "It may or may not have done its work.",
                kind="tool_timeout",
                source=error,
                **about,
            ) from error
        except UnusableResult as error:
            raise ToolExecutionError(
                f"`{tool.name}` ran, but its result cannot be written as JSON: {error}.",
                kind="invalid_result",
                source=error,
                **about,
            ) from error
        except ToolError as error:
            raise ToolExecutionError(
                cut(_text(error), tool.max_result_chars), kind="tool_error", source=error, **about
            ) from error
        except McpError as error:
            raise ToolExecutionError(
                cut(str(error), tool.max_result_chars), kind="tool_exception", source=error, **about
            ) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ToolExecutionError(
                f"`{tool.name}` was cancelled by its own code.", kind="tool_exception", **about
            ) from None
        except BaseException as error:
            # SystemExit too: a tool that says exit() must not end the worker.
            said = f": {_text(error)}" if _text(error) else ""
            raise ToolExecutionError(
                cut(f"`{tool.name}` raised {type(error).__name__}{said}", tool.max_result_chars),
                kind="tool_exception",
                source=error,
                **about,
            ) from error

    async def _told(
        self,
        agent: Agent | None,
        tool: Tool | None,
        error: ToolCallError,
        span: ToolCallSpan,
        max_bytes: int | None,
    ) -> ToolOutcome:
        attempts = activity.info().attempt
        if agent is None and (tool is None or tool.handle_errors is None):
            # Whose policy it is, the agent's own worker knows: there it is told, and its span made.
            return ToolOutcome(unsettled={**error.to_json(), "detail": shown(error.detail)}, attempts=attempts)
        policy = nearest(error, tool.handle_errors if tool else None, agent.handle_errors if agent else None)
        told = await settle(error, policy, self.services.runtime)
        told.close(span)
        longest = tool.max_result_chars if tool else MAX_RESULT_CHARS
        return ToolOutcome(
            text=cut(told.text, longest, max_bytes), error=told.error, failure=told.failure, attempts=attempts
        )


def _wants_another(tool: Tool, error: ToolCallError) -> bool:
    """Whether the declaration says so: timeouts, and the exceptions of `retry_on`."""
    return error.kind == "tool_timeout" or (error.source is not None and isinstance(error.source, tool.retry_on))


def _name(error: ToolCallError) -> str:
    return type(error.source or error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return ""
