"""Agents for each kind of run that viewers of traces show."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, last_result, tool


@tool
def look_up(order: int) -> str:
    """Look up an order."""
    return f"order {order} is on its way"


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is paid back"


recovers = Agent(name="recovers", model="scripted:recovers", instructions="Find orders.", tools=[look_up])
fails = Agent(name="fails", model="scripted:fails", tools=[look_up], handle_errors=False)
limited = Agent(name="limited", model="scripted:limited", tools=[look_up], max_steps=2)
asks = Agent(name="asks", model="scripted:asks", tools=[refund])
delegates = Agent(
    name="delegates", model="scripted:delegates", tools=[recovers.as_tool(description="Looks an order up.")]
)

recovering = Script(
    "recovers",
    [
        Say(calls=[Call("look_up", {"order": "seven"})]),
        Say(calls=[Call("look_up", {"order": 7})]),
        Say("It is on its way."),
    ],
)
failing = Script(
    "fails", [Say(calls=[Call("look_up", {"order": 7})]), Say(calls=[Call("look_up", {"order": "seven"})])]
)
endless = Script("limited", [lambda _: Say(calls=[Call("look_up", {"order": 7})])])
asking = Script("asks", [Say(calls=[Call("refund", {"order": 7})]), Say("Done.")])
delegating = Script(
    "delegates",
    [Say(calls=[Call("recovers", {"prompt": "order 7"})]), lambda messages: Say(last_result(messages))],
)
