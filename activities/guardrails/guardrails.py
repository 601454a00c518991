"""Call the guardrails and validators of an agent. What they decide is data: no mistake of theirs fails the activity."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python
from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.agent_not_served import decline_here, served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.answers.size_limits import ARGUMENTS_BYTES
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.activities.tool_running.thread_bounds import TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.agent import Agent
from mulligan.errors import StructuredOutputValidationError, truncated
from mulligan.features.guardrails import AnswerAgain, Guardrails
from mulligan.observe.spans import ToolCallAttempt
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.plain_function import callable_name
from mulligan.tool import ToolContext
from mulligan.values import AssistantMessage, Message, ToolCall
from mulligan.wire.guardrails import CHECK_INPUT, CHECK_OUTPUT, Checked, CheckInput, CheckOutput, OutputChecked
from mulligan.wire.model_call import RejectedAnswer
from mulligan.wire.shorten import json_size

logger = logging.getLogger("mulligan.guardrails")
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    checks = GuardrailActivities(services)
    return [checks.check_input, checks.check_output]


class _Refused(Exception):
    """A validator refuses the answer; `is_final`: in such a way that the run fails."""

    def __init__(self, message: str, detail: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.message, self.detail, self.is_final = message, detail, is_final


@dataclass(frozen=True)
class GuardrailActivities:
    """The activities `check_input` and `check_output`."""

    services: Services

    @activity.defn(name=CHECK_INPUT)
    async def check_input(self, request: CheckInput) -> Checked:
        """Call the input guardrails, all at once, each with a conversation of its own.

        Raises:
            ApplicationError: this worker does not serve the agent, or not its guardrails; or the conversation could not be
                read now.
        """
        agent = await served_agent(self.services, request.where)
        declared = agent.feature(Guardrails)
        if declared is None or not declared.input:
            raise await self._declined(agent, "input guardrails")
        async with heartbeating() as heartbeat:
            provider = self.services.providers.of(request.model)
            async with conversation_of(request, provider, self.services, heartbeat) as conversation:
                messages = _MESSAGES.dump_python(list(conversation.messages), mode="json")
            metadata = request.guard.metadata if request.guard else {}
            calls = _Calls(self.services, agent, request, metadata, declared.timeout)
            return Checked(
                refusal=await calls.refusal("input", declared.input, lambda: _MESSAGES.validate_python(messages))
            )

    @activity.defn(name=CHECK_OUTPUT)
    async def check_output(self, request: CheckOutput) -> OutputChecked:
        """Call the validators, one after the other, then the output guardrails, all at once.

        Raises:
            ApplicationError: this worker does not serve the agent, or not its guardrails.
        """
        agent = await served_agent(self.services, request.where)
        declared, started = agent.feature(Guardrails), time.time()
        if declared is None or not (declared.output or declared.validators):
            raise await self._declined(agent, "output guardrails and validators")
        calls = _Calls(self.services, agent, request, request.metadata, declared.timeout)
        async with heartbeating():
            try:
                value, as_json = await calls.validated(declared, _output(agent, request), request.value)
            except _Refused as refused:
                return OutputChecked(rejected=await self._rejected(agent, declared, request, refused, started))
            refusal = await calls.refusal("output", declared.output, lambda: value)
        if refusal is not None or as_json == request.value:
            return OutputChecked(refusal=refusal)
        return OutputChecked(is_changed=True, value=as_json)

    async def _declined(self, agent: Agent, what: str) -> ApplicationError:
        """The error of a check whose functions this worker lacks, though the run has pinned that they are called."""
        # Without a warning, nobody would see what the run waits for: the functions that the agent was declared with.
        text = (
            f"The {what} of this run are not on this worker: here, the agent {agent.name!r} is declared without them."
        )
        logger.warning("%s The run waits for a worker that has them.", text)
        return await decline_here(self.services, text)

    async def _rejected(
        self, agent: Agent, declared: Guardrails, request: CheckOutput, refused: _Refused, started: float
    ) -> RejectedAnswer:
        """The feedback for the model, or the failure of the run, by the policy of the output; and its span."""
        answer = AssistantMessage(role="assistant", text="" if request.type else str(request.value))
        error = StructuredOutputValidationError(
            refused.message,
            detail=refused.detail,
            kind="invalid_output",
            tool_name=request.type or "",
            model_message=answer.model_dump(mode="json"),
        )
        attempt = ToolCallAttempt(call=request.call, step=request.step, attempt=1)
        span = self.services.telemetry.tool_call(request.where, attempt, start=started)
        is_over = refused.is_final or (declared.retries is not None and request.refused >= declared.retries)
        policy = False if is_over else policy_for(error, agent=agent, tool=None)
        handled = await apply_policy(error, policy, self.services.runtime)
        handled.end_span(span)
        return RejectedAnswer(text=handled.text, error=handled.error, failure=handled.failure)


@dataclass
class _Calls:
    """The calls of an agent's functions in one activity, within one time limit (`timeout`, seconds)."""

    services: Services
    agent: Agent
    request: CheckInput | CheckOutput
    metadata: dict[str, str]
    timeout: float

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.timeout

    async def refusal(self, what: str, functions: Sequence[Any], value: Callable[[], Any]) -> str | None:
        """The sentence that names the first function, in the order of the list, that refuses the input or output."""
        reasons = await asyncio.gather(*(self._reason(each, value()) for each in functions))
        named = zip(functions, reasons, strict=True)
        sentences = (f"The {what} guardrail `{callable_name(each)}` {reason}" for each, reason in named if reason)
        return truncated(next(sentences, "")) or None

    async def _reason(self, function: Any, value: Any) -> str:
        try:
            said: str = await self._call(function, value, _text)
        except (TookTooLong, TooManyThreads) as error:
            return f"did not answer: {error}"
        except Exception as error:  # noqa: BLE001 - a check that protects must not let anything pass when it fails
            return f"failed: {type_name(error)}: {error_text(error)}"
        return f"refused it: {said}" if said else ""

    async def validated(self, declared: Guardrails, value: Any, as_json: JsonValue) -> tuple[Any, JsonValue]:
        """The answer as the validators return it, and its JSON. `as_json`: that of `value`.

        Raises:
            _Refused: one of them refuses the answer, or fails, or the answer can no longer be written.
        """
        for function in declared.validators:
            name = callable_name(function)
            try:
                value, as_json = await self._call(function, value, _with_json)
            except AnswerAgain as again:
                raise _Refused(f"The validator `{name}` does not accept the answer.", error_text(again)) from None
            except (TookTooLong, TooManyThreads) as error:
                raise _Refused(f"The validator `{name}` did not answer.", str(error), is_final=True) from None
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                why = f"{type_name(error)}: {error_text(error)}"
                raise _Refused(f"The validator `{name}` failed with {type_name(error)}.", why, is_final=True) from None
            if (size := json_size(as_json)) > ARGUMENTS_BYTES:
                text = f"The validator `{name}` returned {size:,} bytes as JSON; the limit is {ARGUMENTS_BYTES:,}."
                raise _Refused(text, "", is_final=True)
        return value, as_json

    async def _call(self, function: Any, value: Any, read: Callable[[Any], Any]) -> Any:
        limit = max(0.0, self._end - time.monotonic())
        return await self.services.runtime.ask(function, (value, self._context(function)), limit=limit, read=read)

    def _context(self, function: Any) -> ToolContext:
        request, name = self.request, callable_name(function)
        call = ToolCall(id=f"{name}_{request.step}", name=name, arguments="")
        context = tool_context(
            request.where,
            call,
            step=request.step,
            metadata=self.metadata,
            resources=self.services.resources.of_agent(self.agent.name),
            digest="",
            attempt=activity.info().attempt,
        )
        return replace(context, pinned={"output_type": getattr(request, "type", None)})


def _output(agent: Agent, request: CheckOutput) -> Any:
    """The answer as the functions get it: a text, or an object of the agent's output type."""
    declared = agent.declared_output
    if request.type is None or declared is None:
        return request.value
    return declared.read(request.type, request.value)


def _text(returned: Any) -> str:
    return str(returned) if returned else ""


def _with_json(returned: Any) -> tuple[Any, JsonValue]:
    return returned, to_jsonable_python(returned, by_alias=True)
