"""`scripted:NAME`: the shipped, deterministic model for demos and tests. It needs no key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from mulligan.activities.models.protocol import FinishReason, Reply, Request
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.schema.error_text import error_text, type_name
from mulligan.script import Say, Script
from mulligan.values import AssistantMessage, Message, ToolCall, Usage, UserMessage

if TYPE_CHECKING:
    from mulligan.activities.models.available_providers import AvailableProviders

SUMMARY = "summary"
"""The script that writes summaries in a run with a scripted model: the run's own script has no turn for them."""
SUMMARY_CHARS = 1_000


class Scripted:
    """Answers by the scripts that the worker has loaded, and by two built-in ones, `echo` and `summary`."""

    name = "scripted"
    background = batch = None

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = {"echo": Script("echo", [_echo]), SUMMARY: Script(SUMMARY, [_sum_up]), **scripts}

    def encode(self, message: Message) -> list[Any]:
        """Return the message's length: scripts read the messages themselves, and only the usage needs the items."""
        return [len(message.text) + (_call_chars(message.tool_calls) if isinstance(message, AssistantMessage) else 0)]

    async def model_names(self) -> list[str]:
        """Return the names of the scripts."""
        return sorted(self._scripts)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def complete(self, request: Request) -> Reply:
        """Return the script's answer to the conversation. It is the same at each attempt.

        Raises:
            ModelRequestError: there is no such script, or it is faulty.
        """
        script = self._scripts.get(request.model)
        if script is None:
            known = ", ".join(sorted(self._scripts))
            raise ModelRequestError(f"There is no script {request.model!r}; this worker has loaded: {known}.")
        say = _answer(script, request.messages, request.summarized_answers)
        step = (
            1 + request.summarized_answers + sum(isinstance(message, AssistantMessage) for message in request.messages)
        )
        calls = [
            ToolCall(id=f"call_{step}_{index}" if call.id is None else call.id, name=call.name, arguments=call.raw)
            for index, call in enumerate(say.calls, 1)
        ]
        await _stream(say, calls, request)
        return Reply(
            text=say.text,
            calls=calls,
            finish_reason=cast(FinishReason, say.finish_reason or ("tool_calls" if calls else "stop")),
            usage=_usage(request, say.text, calls),
            response_id=f"{script.name}-{step}",
            model=script.name,
        )


def create(worker: AvailableProviders, _endpoint: Endpoint | None) -> Scripted:
    """The provider of an endpoint; None: the default one."""
    return Scripted(worker.scripts)


async def _stream(say: Say, calls: Sequence[ToolCall], request: Request) -> None:
    """Stream the text and the calls: word by word at the answer's pace, or all of it at once."""
    if request.on_text:
        await _write(say.text, say.pace, request.on_text)
    for index, call in enumerate(calls):
        if request.on_call:
            await _write(call.arguments, say.pace, partial(request.on_call, index, call.id, call.name))


async def _write(text: str, pace: float, write: Callable[[str], None]) -> None:
    for word in re.findall(r"\s*\S+|\s+$", text) if pace else [text] if text else []:
        write(word)
        await asyncio.sleep(pace)


def _answer(script: Script, messages: Sequence[Message], summarized_answers: int) -> Say:
    try:
        say = script.answer(messages, summarized_answers)
    except Exception as error:  # a user's function; a retry would only raise the same again
        raise ModelRequestError(f"Script {script.name!r} raised {type_name(error)}: {error_text(error)}") from error
    if not isinstance(say, Say):
        raise ModelRequestError(f"Script {script.name!r} answered with {type(say).__name__}; a turn gives a Say.")
    if say.finish_reason not in (None, *get_args(FinishReason)):
        allowed = ", ".join(get_args(FinishReason))
        raise ModelRequestError(f"Script {script.name!r} ends with {say.finish_reason!r}; it must be one of {allowed}.")
    return say


def _echo(messages: Sequence[Message]) -> Say:
    return Say(next((message.text for message in reversed(messages) if isinstance(message, UserMessage)), ""))


def _sum_up(messages: Sequence[Message]) -> Say:
    """Return a placeholder for a summary: shorter than what it replaces, with the end of that."""
    text = _echo(messages).text
    return Say(
        f"A script summed up {len(text):,} characters, that end with: {text[-min(SUMMARY_CHARS, len(text) // 4) :]}"
    )


def _usage(request: Request, text: str, calls: Sequence[ToolCall]) -> Usage:
    """Count tokens roughly: four characters are one."""
    input_chars = sum(request.items, len(request.definition.instructions))
    return Usage(input_tokens=-(-input_chars // 4), output_tokens=-(-(len(text) + _call_chars(calls)) // 4))


def _call_chars(calls: Sequence[ToolCall]) -> int:
    return sum(len(call.name) + len(call.arguments) for call in calls)
