"""Run the functions of users that decide on the calls of one answer: fixers, second models, the guard, policy."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from mulligan.activities.answers.approval_policy import approval_need
from mulligan.activities.answers.ask_model_to_repair import ask_model_to_repair
from mulligan.activities.answers.prepare_call import CallFixer
from mulligan.activities.services import Services
from mulligan.activities.tool_running.thread_bounds import TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.agent import Agent
from mulligan.errors import ToolExecutionError, truncated
from mulligan.fixer import AskModel, Fixer, InvalidToolInput
from mulligan.schema.error_text import error_text, type_name
from mulligan.tool import Tool, ToolContext
from mulligan.values import ToolCall, Usage
from mulligan.wire.model_call import ModelCall
from mulligan.wire.tool_call import digest_of_call

ANSWER_LIMIT = 100.0
"""Seconds for all functions that run on one answer. The workflow allows the activity 120 seconds beyond the model's own
time, and an answer that is lost with its activity must be paid for again."""
FIXER_LIMIT, GUARD_LIMIT = 10.0, 10.0
"""Seconds for one `fix` or `repair`, and for one `guard` or policy: the model's answer waits for it."""


@dataclass
class UserFunctions:
    """The functions that run on one answer, within one time limit. `usage_by_model` counts the tokens of second models."""

    request: ModelCall
    agent: Agent
    services: Services
    usage_by_model: dict[str, Usage] = field(default_factory=dict)
    _end: float = field(default_factory=lambda: time.monotonic() + ANSWER_LIMIT)

    def fixer_of(self, call: ToolCall) -> CallFixer:
        """A function that runs a fixer on a call. It returns None where the fixer raises, or exceeds its limit."""

        async def run_fixer(fixer: Fixer, invalid: InvalidToolInput) -> Any:
            try:
                if isinstance(fixer, AskModel):
                    return await self._ask_model(fixer, invalid, call)
                return await self.services.runtime.ask(fixer, (invalid,), limit=self._seconds_left(FIXER_LIMIT))
            except Exception:  # noqa: BLE001 - a fixer that fails has given up: the model gets its mistake back
                return None

        return run_fixer

    async def check_guard(self, call: ToolCall, arguments: JsonValue) -> None:
        """Ask the agent's guard about a valid call.

        Raises:
            ToolExecutionError: of kind `denied`: the guard refused the call, or it failed.
        """
        limit = self._seconds_left(GUARD_LIMIT)
        refusal = await guard_refusal(self.agent, self.services.runtime, call, arguments, self._context(call), limit)
        if refusal:
            raise _denied(call, refusal)

    async def check_approval(self, tool: Tool, call: ToolCall, arguments: JsonValue) -> dict[str, Any]:
        """What a valid call waits for from a person, as fields of its PreparedCall.

        Raises:
            ToolExecutionError: of kind `denied`: the tool's policy failed.
        """
        if tool.traits.is_question:
            return {"waits_for": "question"}
        limit = self._seconds_left(GUARD_LIMIT)
        need = await approval_need(tool, self.services.runtime, arguments, self._context(call), limit)
        if need.denied is not None:
            raise _denied(call, need.denied)
        return {"waits_for": "approval", "role": need.role} if need.approval else {"waits_for": None}

    async def _ask_model(self, fixer: AskModel, invalid: InvalidToolInput, call: ToolCall) -> Any:
        async with self.services.retry_budget.single_request(fixer.model, self._seconds_left(fixer.timeout)):
            arguments, usage = await ask_model_to_repair(
                fixer, invalid, self.services, self.request, call_id=call.id, limit=self._seconds_left(fixer.timeout)
            )
        before = self.usage_by_model.get(fixer.model)
        self.usage_by_model[fixer.model] = usage if before is None else before + usage
        return arguments

    def _seconds_left(self, limit: float) -> float:
        return max(0.0, min(limit, self._end - time.monotonic()))

    def _context(self, call: ToolCall) -> ToolContext:
        request = self.request
        return tool_context(
            request.where,
            call,
            step=request.step,
            digest=digest_of_call(call),
            metadata=request.guard.metadata if request.guard else {},
            resources=self.services.resources.of_agent(self.agent.name, call.name),
        )


async def guard_refusal(
    agent: Agent, runtime: ToolRuntime, call: ToolCall, arguments: JsonValue, context: ToolContext, limit: float
) -> str | None:
    """Why the agent's guard refuses a call with valid arguments. None where it accepts the call, or there is no guard.

    A guard that fails, or exceeds `limit` seconds, refuses.
    """
    if agent.guard is None:
        return None
    shown_call = call.model_copy(update={"arguments": json.dumps(arguments, ensure_ascii=False)})
    try:
        refusal: str = await runtime.ask(agent.guard, (shown_call, context), limit=limit, read=_refusal)
    except TooManyThreads as error:
        return f"the guard {error}"
    except TookTooLong as error:
        return f"the guard did not answer within {error.limit:g} s."
    except Exception as error:  # noqa: BLE001 - a check that protects must not let calls pass when it fails
        refusal = f"the guard failed: {type_name(error)}: {error_text(error)}"
    return truncated(refusal) or None


def _denied(call: ToolCall, reason: str) -> ToolExecutionError:
    return ToolExecutionError(
        f"`{call.name}` was not run: {reason}",
        kind="denied",
        tool_name=call.name,
        call_id=call.id,
        raw_arguments=call.arguments,
    )


def _refusal(returned: Any) -> str:
    return str(returned) if returned else ""
