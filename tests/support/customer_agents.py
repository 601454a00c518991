"""Agents that customers talk to: they do what the prompt says, and say what their tools see of the caller."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mulligan import Agent, Call, Message, Say, Script, ToolContext, tool
from mulligan.values import ToolMessage, UserMessage

EFFECTS: list[tuple[str | None, float]] = []
"""For whom it was paid, and how much."""


def seen(ctx: ToolContext) -> dict[str, Any]:
    return {"user": ctx.user, "metadata": dict(ctx.metadata), "client_metadata": dict(ctx.client_metadata)}


def is_large(arguments: dict[str, Any], ctx: ToolContext) -> bool:
    return bool(arguments["euros"] > float(ctx.metadata.get("alone_up_to", 10)))


@tool(needs_approval=is_large)
def pay(euros: float, ctx: ToolContext) -> str:
    """Pay."""
    EFFECTS.append((ctx.user, euros))
    return f"paid {euros:g}"


@tool
def look(ctx: ToolContext) -> str:
    """Say what a tool sees of the caller."""
    return json.dumps(seen(ctx))


def _asked(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The newest message of the user, and the results of tools after it."""
    asked = next(number for number in reversed(range(len(messages))) if isinstance(messages[number], UserMessage))
    return messages[asked].text, [message.text for message in messages[asked:] if isinstance(message, ToolMessage)]


def _answer(messages: Sequence[Message]) -> Say:
    """Call the tool that the newest message of the user names (`NAME {arguments}`), and answer with its result."""
    text, results = _asked(messages)
    if results:
        return Say(results[-1])
    name, _, arguments = text.partition(" ")
    if name == "mirror":
        return Say(json.dumps([[message.role, message.text] for message in messages]))
    return Say(calls=[Call(name, json.loads(arguments or "{}"))])


def _boss(messages: Sequence[Message]) -> Say:
    text, results = _asked(messages)
    return Say(results[-1]) if results else Say(calls=[Call("teller", {"prompt": text})])


script = Script("customers", [_answer])
bosses = Script("bosses", [_boss])
teller = Agent(name="teller", model="scripted:customers", tools=[pay, look])
open_teller = Agent(name="open_teller", model="scripted:customers", tools=[pay, look], client_instructions="context")
boss = Agent(name="boss", model="scripted:bosses", tools=[teller.as_tool(description="Tells.")])
