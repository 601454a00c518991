"""Ask a second model to repair the arguments of a call: what `mulligan.ask_model` declares."""

from __future__ import annotations

import json
from typing import Any

from temporalio import activity

from mulligan.activities.answers.without_thoughts import without_thoughts
from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.services import Services
from mulligan.fixer import AskModel, InvalidToolInput
from mulligan.model_name import ModelName
from mulligan.observe.spans import ChatAttempt
from mulligan.values import Usage, UserMessage
from mulligan.wire.agent_facts import Definition, ToolDefinition
from mulligan.wire.model_call import ModelCall

LONGEST_SHOWN = 50_000
"""Characters of the arguments that the second model reads: it could not repeat longer ones within its time limit."""
_INSTRUCTIONS = (
    "You correct the arguments of a tool call that another model wrote. You are given what it wrote and what is wrong with "
    "it. Call the tool once, with the arguments that were meant. Change only what must be changed; invent no value. If what "
    "was written ends too early, or you cannot tell what was meant, answer with the word null."
)


async def ask_model_to_repair(
    fixer: AskModel, invalid: InvalidToolInput, services: Services, request: ModelCall, *, call_id: str, limit: float
) -> tuple[Any, Usage]:
    """The arguments that the second model wrote (an object, JSON text, or None), and the tokens that it used.

    Raises:
        Exception: the model is unavailable, or did not answer within `limit` seconds.
    """
    model, provider = ModelName.parse(fixer.model).name, services.providers.of(fixer.model)
    telemetry = services.telemetry
    takes = ToolDefinition(name=invalid.tool_name, description="The tool that was meant.", parameters=invalid.schema)
    instructions = "\n\n".join(filter(None, (_INSTRUCTIONS, fixer.instructions)))
    message = UserMessage(role="user", text=_prompt(invalid))
    provider_request = Request(
        model=model,
        definition=Definition(instructions=instructions, tools=[takes]),
        items=provider.encode(message),
        messages=[message],
        timeout=services.providers.timeout(fixer.model, limit),
    )
    attempt = ChatAttempt(
        provider=provider.name,
        model=model,
        step=request.step,
        attempt=activity.info().attempt,
        repaired_call=call_id,
    )
    with telemetry.chat(request.where, attempt) as span:
        endpoint = services.providers.endpoint_of(fixer.model)
        async with services.budgets.void_counted(request.where, fixer.model, provider_request, call_id, fixer.model):
            reply = await call_provider(provider, provider_request, telemetry, span, endpoint)
    return _arguments(reply), reply.usage


def _prompt(invalid: InvalidToolInput) -> str:
    written = invalid.raw_arguments[:LONGEST_SHOWN]
    return f"The tool: {invalid.tool_name}\n\nWhat was written:\n{written}\n\nWhat is wrong:\n{invalid.error.text}"


def _arguments(reply: Reply) -> Any:
    """The arguments of the model's call, or the JSON in its text, with or without a code fence."""
    text = reply.calls[0].arguments if reply.calls else without_thoughts(reply.text)
    text = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        return json.loads(text)
    except ValueError:
        return None
