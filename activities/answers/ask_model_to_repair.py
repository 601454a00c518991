"""Ask a second model to mend a call's arguments: what `mulligan.ask_model` declares."""

from __future__ import annotations

import json
from typing import Any

from temporalio import activity

from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.protocol import Provider, Reply, Request
from mulligan.fixer import AskModel, InvalidToolInput
from mulligan.model_name import ModelName
from mulligan.observe.spans import ChatAttempt
from mulligan.observe.telemetry import Telemetry
from mulligan.values import Usage, UserMessage
from mulligan.wire.agent_facts import Definition, ToolDefinition
from mulligan.wire.model_call import ModelCall

LONGEST_SHOWN = 50_000
"""Characters of the arguments that it is shown: what is longer, it could not write again in its time."""
_INSTRUCTIONS = (
    "You correct the arguments of a tool call that another model wrote. You are given what it wrote and what is wrong with "
    "it. Call the tool once, with the arguments that were meant. Change only what must be changed; invent no value. If what "
    "was meant cannot be told, answer with the word null."
)


async def ask_model_to_repair(
    asked: AskModel,
    invalid: InvalidToolInput,
    *,
    provider: Provider,
    telemetry: Telemetry,
    order: ModelCall,
    call_id: str,
    limit: float,
) -> tuple[Any, Usage]:
    """The arguments that the model gave (an object, JSON text, or None), and what it cost.

    Raises:
        Exception: the model was not to be had, or did not answer within `limit` seconds.
    """
    model = ModelName.parse(asked.model).name
    takes = ToolDefinition(name=invalid.tool_name, description="The tool that was meant.", parameters=invalid.schema)
    instructions = "\n\n".join(filter(None, (_INSTRUCTIONS, asked.instructions)))
    message = UserMessage(role="user", text=_shown(invalid))
    request = Request(
        model=model,
        definition=Definition(instructions=instructions, tools=[takes]),
        items=provider.encode(message),
        messages=[message],
        timeout=limit,
    )
    attempt = ChatAttempt(
        provider=provider.name,
        model=model,
        step=order.step,
        attempt=activity.info().attempt,
        repaired_call=call_id,
    )
    with telemetry.chat(order.where, attempt) as span:
        reply = await call_provider(provider, request, telemetry, span)
    return _given(reply), reply.usage


def _shown(invalid: InvalidToolInput) -> str:
    written = invalid.raw_arguments[:LONGEST_SHOWN]
    return f"The tool: {invalid.tool_name}\n\nWhat was written:\n{written}\n\nWhat is wrong:\n{invalid.error.text}"


def _given(reply: Reply) -> Any:
    """Its call's arguments, or its text where it wrote the JSON there; a fence around it is no matter."""
    text = reply.calls[0].arguments if reply.calls else reply.text
    text = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        return json.loads(text)
    except ValueError:
        return None
