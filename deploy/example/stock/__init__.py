"""`stock`: an agent of your own, as a package. Its model is scripted, so it runs without a key."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script, last_result, tool

SHELF = {"lamp": 3, "chair": 0}


@tool
def count_items(item: str) -> str:
    """How many of an item are in stock.

    Args:
        item: The item's name, in the singular.
    """
    return f"{item}: {SHELF.get(item, 0)} in stock"


def _answer(messages: Sequence[Message]) -> Say:
    return Say(f"I looked: {last_result(messages)}.")


script = Script("stock", [Say(calls=[Call("count_items", {"item": "lamp"})]), _answer])

stock = Agent(
    name="stock",
    model="scripted:stock",  # or "openai:gpt-5-mini", with OPENAI_API_KEY set
    instructions="You keep the stock of a small shop.",
    tools=[count_items],
)
