"""A module as a user would write it: an agent that asks people, with a scripted model."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, tool
from mulligan.tools import ask_person


@tool(needs_approval=True)
def refund(order: int, euros: float, note: str = "") -> str:
    """Give money back."""
    return f"refunded {euros:g} for order {order}"


clerk = Agent(name="clerk", model="scripted:clerk", tools=[refund, ask_person], max_steps=5)
script = Script(
    "clerk",
    [
        Say(calls=[Call("refund", {"order": 7, "euros": 12.5, "note": "\x1b[2J[red]\u202eAda"}, id="call_1")]),
        Say(calls=[Call("ask_person", {"question": "Which [bold]lamp\x1b[0m?"}, id="call_2")]),
        Say(calls=[Call("refund", {"order": n, "euros": 1}, id=f"call_{n}") for n in (3, 4)]),
        lambda messages: Say(" / ".join(message.text for message in messages if message.role != "assistant")),
    ],
)
