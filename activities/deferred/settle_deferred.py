"""The end of a call of a deferred tool: its result for the model and its span; and the tool's `on_cancel`."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import cut, render
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.client.callback_tokens import call_of
from mulligan.errors import ToolCallError, ToolExecutionError, ToolTimeoutError
from mulligan.features.deferred import DeferredOption
from mulligan.schema.error_text import type_name
from mulligan.tool import MAX_RESULT_CHARS, Tool
from mulligan.wire.deferred import CANCEL_DEFERRED, SETTLE_DEFERRED, SettleDeferred
from mulligan.wire.tool_call import ToolOutcome

_log = logging.getLogger(__name__)
VALIDATE_LIMIT, CANCEL_LIMIT = 5.0, 20.0
"""Seconds for a result's type to validate it, which may call users' code; and for one attempt at `on_cancel`."""
_MOST_FAULTS = 10


@dataclass(frozen=True)
class SettleDeferredActivities:
    """The activities `settle_deferred`, a local one, and `cancel_deferred`."""

    services: Services

    @activity.defn(name=SETTLE_DEFERRED)
    async def settle_deferred(self, request: SettleDeferred) -> ToolOutcome:
        """Write the span of the call, from the start of its body until now, and return its result.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        services = self.services
        agent = await served_agent(services, request.where)
        tool = services.tools.find(agent, request.call.name, mcp=request.mcp)
        most_chars = tool.max_result_chars if tool else MAX_RESULT_CHARS
        is_over = request.end in ("stopped", "cancelled")
        span = services.telemetry.call_span(
            request, arguments=request.arguments, start=request.started, attempt=request.attempts
        )
        try:
            whole = await self._text(request, tool)
            text = cut(whole, most_chars, request.max_bytes)
        except ToolCallError as error:
            # A run that a person stops must end as stopped, so no policy may fail it.
            policy = True if is_over else policy_for(error, agent=agent, tool=tool)
            failure = await apply_policy(error, policy, services.runtime)
            if is_over:
                kind = "cancelled" if request.end == "cancelled" else error.kind
                span.fail_attempt(kind, error.message, type(error).__name__)
            elif request.body is None:
                failure.end_span(span)
            outcome = ToolOutcome(
                text=cut(failure.text, most_chars, request.max_bytes), error=failure.error, failure=failure.failure
            )
        else:
            if request.body is None:
                span.succeed(text)
            outcome = ToolOutcome(text=text, is_cut=len(text) != len(whole))
        outcome = _beside_failure(request.body, outcome)
        services.cache_result(request.where, request.call, outcome.text, outcome.error)
        outcome.attempts = request.attempts
        return outcome

    @activity.defn(name=CANCEL_DEFERRED)
    async def cancel_deferred(self, request: SettleDeferred) -> None:
        """Call the tool's `on_cancel`. What it raises is tried again, then logged by the workflow.

        Raises:
            ApplicationError: this worker does not serve the agent, or cannot list the tools of the run now.
        """
        services, name = self.services, request.where.agent
        agent = await services.agents.find(request.where)
        tool = services.tools.find(agent, request.call.name, mcp=request.mcp)
        if tool is None:
            agent = await served_agent(services, request.where)
            if agent.is_of_run:  # what runs elsewhere must not go on because a list of tools failed once
                raise ApplicationError(f"The tool {request.call.name!r} is not among the tools of the run now.")
        end = None if tool is None else tool.option(DeferredOption).on_cancel
        if tool is None or end is None:
            return
        async with heartbeating() as heartbeat:
            call = call_of(request.where, request.workflow_id, request.call.id)
            context = tool_context(
                request.where,
                request.call,
                step=request.step,
                digest=request.digest,
                first_key=request.first_key,
                metadata=request.metadata,
                resources=services.resources.of_agent(name, tool.name)
                if agent
                else services.resources.of_tool(tool.name),
                attempt=activity.info().attempt,
                workflow_id=request.workflow_id,
                heartbeat=heartbeat.send_details,
            )
            context = replace(context, callback_token=await services.callback_tokens.seal(call))
            await services.runtime.ask(end, (_value(request.text), context), limit=CANCEL_LIMIT)

    async def _text(self, request: SettleDeferred, tool: Tool | None) -> str:
        """The result as the model reads it.

        Raises:
            ToolCallError: the call has failed.
        """
        name, call_id = request.call.name, request.call.id
        reason = f": {request.reason}" if request.reason else "."
        match request.end:
            case "result":
                if tool is not None and tool.traits.returns is not None:
                    await self._validate(request, tool)
                return render(request.result)
            case "error":
                raise ToolExecutionError(request.error or "", kind="tool_error", tool_name=name, call_id=call_id)
            case "timeout":
                message = (
                    f"`{name}` has started, but its result did not come within {request.timeout:g} s, so it is no longer "
                    "waited for. It may or may not be done later."
                )
                raise ToolTimeoutError(message, kind="tool_timeout", tool_name=name, call_id=call_id)
            case "time":
                return f"The time has come, after {request.seconds_waited:.0f} s."
            case "message":
                return (
                    f"The wait was ended after {request.seconds_waited:.0f} s by a message, "
                    f"{request.seconds_left:.0f} s before its time."
                )
            case "stopped" | "cancelled":
                ended = "was stopped" if request.end == "stopped" else "was cancelled"
                message = f"`{name}` was not finished: the run {ended} before its result came{reason}"
                raise ToolExecutionError(message, kind="denied", tool_name=name, call_id=call_id)

    async def _validate(self, request: SettleDeferred, tool: Tool) -> None:
        name = tool.name
        source: Exception
        try:
            validate = TypeAdapter(tool.traits.returns).validate_json
            given = (json.dumps(request.result),)
            await self.services.runtime.ask(validate, given, limit=VALIDATE_LIMIT, of=tool.traits.returns)
            return
        except ValidationError as error:
            source, faults = error, _faults(error)
        except TookTooLong as error:
            source, faults = error, "its type did not validate it in time"
        except Exception as error:  # noqa: BLE001 - users' validators may raise anything
            source, faults = error, f"its type raised {type_name(error)}"
        message = f"`{name}` was completed with a result that is not of its type: {faults}."
        raise ToolExecutionError(
            message, kind="invalid_result", source=source, tool_name=name, call_id=request.call.id
        ) from source


def _beside_failure(body: ToolOutcome | None, outcome: ToolOutcome) -> ToolOutcome:
    """The result of a call whose body has failed after the call was completed: the model reads both."""
    if body is None:
        return outcome
    came = "This result had come before" if outcome.error is None else "This error had come before"
    return body.model_copy(update={"text": f"{body.text}\n\n{came}: {outcome.text}"})


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    listed = [f"{'.'.join(map(str, each['loc'])) or 'the result'}: {each['msg']}" for each in faults[:_MOST_FAULTS]]
    more = len(faults) - len(listed)
    return "; ".join(listed) + (f"; and {more} more" if more else "")


def _value(text: str) -> object:
    """What a tool returned, read back from the text that it was written as."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
