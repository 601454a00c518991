"""An agent that calls a clock, then answers with the number of user messages and the last of them."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script, tool


@tool
async def clock() -> str:
    """What time it is."""
    return "noon"


def turn(messages: Sequence[Message]) -> Say:
    if messages[-1].role == "user":
        return Say(calls=[Call("clock")])
    heard = [message.text for message in messages if message.role == "user"]
    return Say(f"{len(heard)}: {heard[-1]}")


script = Script("chatty", [turn])
chatty = Agent(name="chatty", model="scripted:chatty", tools=[clock])
