"""A module as a user would write it, with scripted models that need no key."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, tool


@tool
async def search_orders(customer: str) -> list[dict[str, int]]:
    """Search the orders of a customer."""
    return [{"id": 7}] if customer == "Ada" else []


support = Agent(name="support", model="scripted:support", tools=[search_orders], max_steps=5)
slow = Agent(name="slow", model="openai-chat:nobody", tools=[search_orders], handle_errors=False)

script = Script(
    "support",
    [
        Say("Let me look.", [Call("search_orders", {"client": "Ada"})]),
        Say(calls=[Call("search_orders", {"customer": "Ada"})]),
        Say("Ada has order 7."),
    ],
)
broken = Script("broken", [Say(calls=[Call("sarch_orders", {})])])
