"""An agent whose tool decides by its arguments who must approve it, with a scripted model."""

from __future__ import annotations

from typing import Any

from mulligan import Agent, Call, Say, Script, ToolContext, tool
from tests.support.shop_agents import RAN

UNKNOWN = 13


def by_amount(arguments: dict[str, Any], ctx: ToolContext) -> bool | str:
    """Up to 10 nobody is asked, up to 100 anybody, beyond that finance."""
    if arguments["euros"] == UNKNOWN:
        raise LookupError("13 is in no list")
    return "finance" if arguments["euros"] > 100 else arguments["euros"] > 10


@tool(needs_approval=by_amount)
def buy(what: str, euros: int, ctx: ToolContext) -> str:
    """Buy something."""
    RAN[ctx.workflow_id].append(("buy", {"what": what, "euros": euros}))
    return f"bought {what} for {euros}"


buyer = Agent(name="buyer", model="scripted:buyer", tools=[buy])
buying = Script("buyer", [Say(calls=[Call("buy", {"what": "lamps", "euros": 50}, id="b1")]), Say("Done.")])
