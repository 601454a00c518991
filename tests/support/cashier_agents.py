"""Agents for what the console says of tasks, decisions, failures that are nobody's mistake, and costs."""

from __future__ import annotations

import sys
from dataclasses import replace

from pydantic import BaseModel

from mulligan import Agent, Call, McpServer, RunInput, Say, Script, Tool, tool
from mulligan.tools import ask_person

NOBODY = "nobody-serves-this-queue"


@tool(needs_approval=True)
def refund(order: int, amount: float) -> str:
    """Give money back to the customer of an order, at once and for good.

    Args:
        order: The number of the order.
        amount: How much, in euros.
    """
    return f"Refunded {amount} for order {order}."


@tool
def look_up(order: int) -> str:
    """Look an order up."""
    return f"Order {order}: a teapot."


@tool
def fetch_rate(day: int) -> str:
    """The rate of a day."""
    if day == 1:
        raise RuntimeError("The rates are closed.")
    return "1.08"


@tool(task_queue=NOBODY, queue_timeout=0.5)
def call_bank(order: int) -> str:
    """Call the bank."""
    return "called"


class Receipt(BaseModel):
    order: int
    total: float


cashier_script = Script(
    "cashier",
    [
        Say("Order 7 came broken, so it is paid back.", [Call("refund", {"order": 7, "amount": 40.0})]),
        Say("Then five euros, as you wish.", [Call("refund", {"order": 7, "amount": 5.0})]),
        Say("Done."),
    ],
)
mover_script = Script(
    "mover", [Say("", [Call("refund", {"order": 7, "amount": 40.0})]), Say("", [Call("look_up", {"order": 7})]), Say("Done.")]
)  # fmt: skip
unlucky_script = Script(
    "unlucky",
    [
        Say("", [Call("fetch_rate", {"day": 1}), Call("call_bank", {"order": 7}), Call("look_up", {"order": "seven"})]),
        Say("", [Call("fetch_rate", {"day": 2}), Call("look_up", {"order": 7})]),
        Say("", [Call("ask_person", {"question": "Shall I try the bank again?"})]),
        Say("Done."),
    ],
)
broken_script = Script("broken", [Say("", [Call("sign")])])


@tool(handle_errors=False)
def sign() -> str:
    """Sign."""
    raise RuntimeError("There is no pen.")


cashier = Agent(name="cashier", model="scripted:cashier", tools=[refund])
mover = Agent(name="mover", model="scripted:mover", tools=[refund, look_up])
unlucky = Agent(name="unlucky", model="scripted:unlucky", tools=[fetch_rate, call_bank, look_up, ask_person])
broken = Agent(name="broken", model="scripted:broken", tools=[sign])
moved = replace(mover, tools=[replace(refund, name="pay_back"), look_up])
"""The mover of a later build, in which a tool has another name."""


def tools_of_run(run_input: RunInput) -> list[Tool]:
    return [look_up]


chooser = Agent(name="chooser", model="scripted:cashier", tools=tools_of_run)
bookkeeper = Agent(
    name="bookkeeper",
    model="scripted:cashier",
    tools=[cashier.as_tool(description="Pays.")],
    mcp=[
        McpServer("ledger", command=[sys.executable, "-c", "raise SystemExit"], include=["read_entry"]),
        McpServer("mail", url="http://127.0.0.1:9/mcp", exclude=["delete"]),
    ],
    output=Receipt,
)
biller = Agent(name="biller", model="scripted:cashier", mcp=[McpServer("bills", url="http://127.0.0.1:9/mcp")])

AGENTS = [cashier, mover, unlucky, broken, chooser, bookkeeper, biller]
SCRIPTS = [cashier_script, mover_script, unlucky_script, broken_script]
