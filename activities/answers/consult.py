"""Ask fixers, second models and the guard about the calls of one answer, all within one limit of time."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from mulligan.activities.answers.ask_model_to_repair import ask_model_to_repair
from mulligan.activities.answers.prepare_call import AskFixer
from mulligan.activities.services import Services
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.activities.tool_running.tool_runtime import TookTooLong, ToolRuntime
from mulligan.agent import Agent
from mulligan.errors import ToolExecutionError
from mulligan.fixer import AskModel, Fixer, InvalidToolInput
from mulligan.model_name import ModelName
from mulligan.tool import Tool, ToolContext
from mulligan.values import ToolCall, Usage
from mulligan.wire.model_call import ModelCall

CONSULT_LIMIT = 100.0
"""Seconds for all that is asked about an answer: the workflow gives the activity 120 beside the model's own time, and an
answer that is lost with its activity must be paid for again. Who is asked after that has given up."""
FIXER_LIMIT, GUARD_LIMIT = 10.0, 10.0
"""Seconds that one `fix`, `repair` or `guard` may take: the model's answer waits for it."""


@dataclass
class Consultation:
    """Who is asked about one answer. `spent`: what second models took, by model."""

    order: ModelCall
    agent: Agent
    services: Services
    spent: dict[str, Usage] = field(default_factory=dict)
    _end: float = field(default_factory=lambda: time.monotonic() + CONSULT_LIMIT)

    def about(self, call: ToolCall) -> AskFixer:
        """How the fixers of a call are asked: None where one raises, or hangs."""

        async def ask(fixer: Fixer, invalid: InvalidToolInput) -> Any:
            try:
                if isinstance(fixer, AskModel):
                    return await self._ask_model(fixer, invalid, call)
                return await self.services.runtime.ask(fixer, (invalid,), limit=self._left(FIXER_LIMIT))
            except Exception:  # noqa: BLE001 - it has given up; the model is told its mistake
                return None

        return ask

    async def guard(self, call: ToolCall, arguments: JsonValue) -> None:
        """Let a valid call pass.

        Raises:
            ToolExecutionError: of kind `denied`: the guard says no. One that cannot answer says no.
        """
        limit = self._left(GUARD_LIMIT)
        reason = await ask_guard(self.agent, self.services.runtime, call, arguments, self._context(call), limit)
        if reason:
            raise ToolExecutionError(
                f"`{call.name}` was not run: {reason}",
                kind="denied",
                tool_name=call.name,
                call_id=call.id,
                raw_arguments=call.arguments,
            )

    async def person(self, tool: Tool, call: ToolCall, arguments: JsonValue) -> Literal["approval", "question"] | None:
        """For whose word a valid call waits. Where nobody can tell whether approval is needed, it is."""
        if tool.asks_person:
            return "question"
        needed: Any = tool.needs_approval
        if callable(needed):
            try:
                needed = await self.services.runtime.ask(
                    needed, (arguments, self._context(call)), limit=self._left(GUARD_LIMIT)
                )
            except Exception:  # noqa: BLE001 - it is there to protect
                needed = True
        return "approval" if needed else None

    async def _ask_model(self, asked: AskModel, invalid: InvalidToolInput, call: ToolCall) -> Any:
        async with self.services.retry_budget.single_request(asked.model, self._left(asked.timeout)):
            given, usage = await ask_model_to_repair(
                asked,
                invalid,
                provider=self.services.providers[ModelName.parse(asked.model).provider],
                telemetry=self.services.telemetry,
                order=self.order,
                call_id=call.id,
                limit=self._left(asked.timeout),
            )
        self.spent[asked.model] = self.spent.get(asked.model, Usage()) + usage
        return given

    def _left(self, limit: float) -> float:
        return max(0.0, min(limit, self._end - time.monotonic()))

    def _context(self, call: ToolCall) -> ToolContext:
        order = self.order
        return tool_context(
            order.where,
            call,
            step=order.step,
            metadata=order.guard.metadata if order.guard else {},
            resources=self.services.resources.of_agent(self.agent.name),
        )


async def ask_guard(
    agent: Agent, runtime: ToolRuntime, call: ToolCall, arguments: JsonValue, context: ToolContext, limit: float
) -> str | None:
    """Why the agent's guard does not let a call with valid arguments pass; None where it does, or where there is none."""
    if agent.guard is None:
        return None
    asked = call.model_copy(update={"arguments": json.dumps(arguments, ensure_ascii=False)})
    try:
        reason = await runtime.ask(agent.guard, (asked, context), limit=limit)
    except TookTooLong as error:
        return f"the guard did not answer within {error.limit:g} s."
    except Exception as error:  # noqa: BLE001 - it is there to protect
        return f"the guard failed: {type(error).__name__}: {error}"
    return str(reason) if reason else None
