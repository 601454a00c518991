"""What a waiting call is about: the run's task, the message that led to it, and what the model said with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from mulligan.content import described
from mulligan.serve.caller import Caller
from mulligan.serve.runs import NO_END, Runs
from mulligan.values import UserMessage

WINDOWS = (40, 200)
"""Messages that are looked at, the newest first: a call that waits is of the newest step."""


@dataclass(frozen=True)
class CallTask:
    """What a call is about; empty texts where it is not known.

    `prompt`: of the run. `message`: the newest one of a user before the call, unless it is the prompt. `said`: the model's
    text of the step. `number`: of the call among the `calls` of its step, from 1; 0: not known.
    """

    prompt: str = ""
    message: str = ""
    said: str = ""
    number: int = 0
    calls: int = 0


async def read_call_task(runs: Runs, caller: Caller, pending: dict[str, Any]) -> CallTask:
    """Read it for an entry of `pending`.

    Raises:
        Problem: there is no such run that the caller may see.
        RPCError: no worker answers.
        WorkflowQueryFailedError: the workflow has no messages.
    """
    run_id, conversation, call_id = pending["id"], pending.get("conversation", "0"), pending["call_id"]
    run_input = await runs.input(caller, run_id)
    prompt = described(run_input.prompt) if run_input and run_input.prompt else ""
    said, number, calls, is_before = "", 0, 0, False
    async for message in _newest_first(runs, caller, run_id, conversation):
        ids = [call["id"] for call in message.get("tool_calls") or []]
        if call_id in ids:
            said, number, calls, is_before = message.get("text") or "", ids.index(call_id) + 1, len(ids), True
        elif is_before and message["role"] == "user":
            user = UserMessage.model_validate(message)
            text = described(user.content or user.text)
            return CallTask(prompt, "" if text == prompt else text, said, number, calls)
    return CallTask(prompt, "", said, number, calls)


async def _newest_first(runs: Runs, caller: Caller, run_id: str, conversation: str) -> AsyncIterator[dict[str, Any]]:
    """The newest messages, as JSON."""
    end = (await runs.messages(caller, run_id, NO_END, 1, conversation))["total"]
    for window in WINDOWS:
        start, messages = max(0, end - window), list[dict[str, Any]]()
        following: int | None = start
        while following is not None and following < end:
            page = await runs.messages(caller, run_id, following, end - following, conversation)
            messages += page["messages"]
            following = page["next"]
        for message in reversed(messages):
            yield message
        end = start
