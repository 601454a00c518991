"""Agents that `mulligan serve` offers as MCP tools. Some have the names, and do the work, of the conformance suite's tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from mulligan import Agent, Call, Message, Say, Script, ToolContext, ToolStrategy, tool
from mulligan.tools import ask_person

LONGER_THAN_A_QUICK_CALL = 5.0
"""Seconds: a run that is to become a task takes longer than the server waits before it creates one."""


def arguments_of(messages: Sequence[Message]) -> dict[str, Any]:
    """The prompt, which is JSON."""
    try:
        return dict(json.loads(messages[0].text))
    except ValueError:
        return {}


@tool(timeout=300)
async def compute(seconds: float, ctx: ToolContext) -> str:
    """Compute for a while."""
    ctx.heartbeat("half of it")
    await asyncio.sleep(seconds)
    return "42"


@tool(timeout=30, handle_errors=False)
async def fail_later(ctx: ToolContext) -> str:
    """Fail after a while."""
    await asyncio.sleep(LONGER_THAN_A_QUICK_CALL)
    raise RuntimeError("the disk is full")


@tool(handle_errors=False)
def fail() -> str:
    """Fail."""
    raise RuntimeError("the disk is full")


@tool(needs_approval=True)
def pay_back(order: int) -> str:
    """Give money back."""
    return f"paid back order {order}"


class Receipt(BaseModel):
    """What was paid back."""

    order: int
    paid: bool


def _greeting(messages: Sequence[Message]) -> Say:
    return Say(f"Hello, {arguments_of(messages).get('name', 'nobody')}!")


def _computing(messages: Sequence[Message]) -> Say:
    seconds = float(arguments_of(messages).get("seconds", 0))
    return Say(calls=[Call("compute", {"seconds": seconds + LONGER_THAN_A_QUICK_CALL})])


def _receipt(messages: Sequence[Message]) -> Say:
    paid = messages[-1].text.startswith("paid back")
    return Say(calls=[Call("Receipt", {"order": 7, "paid": paid})])


def _told(messages: Sequence[Message]) -> Say:
    return Say("; ".join(message.text for message in messages[2:]))


_ask = [Call("ask_person", {"question": question}) for question in ("Really?", "Your name?")]
SCRIPTS = (
    Script("greet", [_greeting]),
    Script("compute", [_computing, Say("The result is 42.")]),
    Script("fail_later", [Say(calls=[Call("fail_later")])]),
    Script("fail", [Say(calls=[Call("fail")])]),
    Script("confirm", [Say(calls=_ask[:1]), _told]),
    Script("ask_twice", [Say(calls=_ask[:1]), Say(calls=_ask[1:]), _told]),
    Script("ask_two", [Say(calls=_ask), _told]),
    Script("pay", [Say(calls=[Call("pay_back", {"order": 7})]), _receipt]),
    Script("simple", [Say("This is a simple text response for testing.")]),
    Script("progress", [Say(calls=[Call("compute", {"seconds": 2})]), Say("done")]),
)


def _agent(name: str, script: str, tools: Sequence[Any] = (), **options: Any) -> Agent[Any]:
    return Agent(name=name, model=f"scripted:{script}", tools=tools, **options)


ASKING = ("elicitation", "request_state", "tampered_state", "capabilities")
AGENTS = [
    _agent("greet", "greet"),
    _agent("slow_compute", "compute", [compute]),
    _agent("failing_job", "fail_later", [fail_later]),
    _agent("confirm_delete", "confirm", [ask_person]),
    _agent("multi_input", "ask_two", [ask_person]),
    _agent("cashier", "pay", [pay_back], output=ToolStrategy(Receipt)),
    _agent("test_simple_text", "simple"),
    _agent("test_tool_with_progress", "progress", [compute]),
    _agent("test_error_handling", "fail", [fail]),
    *(_agent(f"test_input_required_result_{name}", "confirm", [ask_person]) for name in ASKING),
    _agent("test_input_required_result_multi_round", "ask_twice", [ask_person]),
    _agent("a name with spaces", "greet"),
]
