"""Three levels of agents, of which the lowest needs approval and asks a question; and an agent that calls two at once."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script, last_result, tool
from mulligan.tools import ask_person


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


clerk = Agent(name="team_clerk", model="scripted:team_clerk", tools=[refund, ask_person])
head = Agent(name="team_head", model="scripted:team_head", tools=[clerk.as_tool(description="Refunds orders.")])
chief = Agent(name="team_chief", model="scripted:team_chief", tools=[head.as_tool(description="Has orders refunded.")])


def _chief(messages: Sequence[Message]) -> Say:
    heads = 2 if messages[0].text == "twice" else 1
    return Say(calls=[Call("team_head", {"prompt": "Refund order 7."}, id=f"head_{n}") for n in range(heads)])


chief_script = Script("team_chief", [_chief, lambda messages: Say(last_result(messages))])
head_script = Script(
    "team_head",
    [Say(calls=[Call("team_clerk", {"prompt": "Order 7."}, id="clerk")]), lambda messages: Say(last_result(messages))],
)
clerk_script = Script(
    "team_clerk",
    [
        Say(calls=[Call("refund", {"order": 7}, id="refund_7")]),
        Say(calls=[Call("ask_person", {"question": "Which colour?"}, id="colour")]),
        lambda messages: Say(" / ".join(each.text for each in messages if each.role == "tool")),
    ],
)
