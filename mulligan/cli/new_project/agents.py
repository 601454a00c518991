"""An agent and its tools. `mulligan worker --load agents` serves every agent of this module."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BaseModel, Field

from mulligan import Agent, Call, InvalidToolInput, Say, Script, ToolError, tool


class Order(BaseModel):
    """What a tool returns may be any type that pydantic can write as JSON."""

    id: int
    customer: str
    status: str


ORDERS = {7: Order(id=7, customer="Ada", status="on its way")}  # your database


@tool
async def find_orders(customer: str, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> list[Order]:
    """Find the orders of a customer.

    Args:
        customer: The customer's name.
        limit: How many orders at most.
    """
    return [order for order in ORDERS.values() if order.customer == customer][:limit]


def number_is_order_id(invalid: InvalidToolInput) -> object | None:
    """A fixer: it sees input that is not valid, and returns what it should have been, or None."""
    if isinstance(invalid.arguments, dict) and "number" in invalid.arguments:
        return {"order_id": invalid.arguments["number"]}
    return None


# once: models write a call twice; it is executed once.
@tool(fix=number_is_order_id, once=True)
async def cancel_order(order_id: int) -> str:
    """Cancel an order."""
    if order_id not in ORDERS:
        # The model reads this text as the call's result, and can correct itself.
        raise ToolError(f"There is no order {order_id}.")
    return f"Order {order_id} is cancelled."


support = Agent(
    name="support",
    # A scripted model needs no key. For a real one: MODEL=openai:gpt-5-mini, and OPENAI_API_KEY.
    model=os.environ.get("MODEL", "scripted:support"),
    instructions="You answer customers of a shop. Be brief.",
    tools=[find_orders, cancel_order],
    max_steps=10,
)

script = Script(
    "support",
    [
        Say(calls=[Call("find_orders", {"customer": "Ada"})]),
        Say(calls=[Call("cancel_order", {"number": 7})]),  # wrong: the field is `order_id`; the fixer corrects it
        Say("Order 7 is cancelled."),
    ],
)
