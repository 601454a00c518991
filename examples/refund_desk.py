"""`RefundDesk`: letters of customers are read, decided by code, and answered; large refunds wait for a person.

One agent reads the letter into a typed object, plain code decides by it, a second agent pays and writes the answer. Above
100 euros its call waits for a person, for a week at most. A refund is paid once, also if the model asks twice.
Models are scripted, so it runs without a key; put `openai:gpt-5-mini` in their place.

    uv run mulligan worker --load examples.refund_desk
    uv run python -m examples.refund_desk letter-8 "The sofa of order 8 broke."
    uv run mulligan pending letter-8
    uv run mulligan approve letter-8
    uv run mulligan show letter-8
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from temporalio import workflow

from mulligan import Agent, Call, DurableAgent, Message, Say, Script, ToolContext, connect, last_result, output_of, tool

LIMIT = 100.0
"""Euros up to which a refund is paid without a person."""

PRICES = {7: 40.0, 8: 250.0}
"""The shop's orders; in your own desk, a database."""


class Letter(BaseModel):
    """What a customer wants."""

    wish: Literal["refund", "question"]
    order: int
    amount: Annotated[float, Field(ge=0)] = 0


class Reply(BaseModel):
    """The text to send, and how many euros were paid back."""

    text: str
    refunded: float = 0


class Answer(BaseModel):
    """The decision on a letter, and the text to send."""

    decision: Literal["refunded", "denied", "answered"]
    text: str
    trace_id: str


def is_large(arguments: dict[str, Any], _ctx: ToolContext) -> bool:
    """Whether a person must approve the refund."""
    return float(arguments["euros"]) > LIMIT


@tool
async def price_of(order: int) -> float:
    """The price of an order, in euros."""
    return PRICES.get(order, 0.0)


@tool(needs_approval=is_large, approval_timeout=7 * 24 * 3600, once=True)
async def refund(order: int, euros: Annotated[float, Field(gt=0)], ctx: ToolContext) -> str:
    """Pay money back for an order."""
    # What a payment provider is sent, so that it pays once: the key is the same on each attempt of this call.
    return f"Paid {euros:g} euros for order {order} (key {ctx.idempotency_key[:8]})."


reader = Agent(
    name="reader",
    model="scripted:reader",
    instructions="You read letters to a shop, and say what the customer wants. Look the price up.",
    tools=[price_of],
    output=Letter,
)
clerk = Agent(
    name="clerk",
    model="scripted:clerk",
    instructions="You do what the desk has decided, and write the shop's answer: kind, short, no promises.",
    tools=[refund],
    output=Reply,
)


@workflow.defn
class RefundDesk:
    """One letter, from its reading to its answer."""

    @workflow.run
    async def run(self, letter: str) -> Answer:
        """Read, decide, pay, answer."""
        reading, writing = DurableAgent("reader"), DurableAgent("clerk")
        read = output_of(await reading.run(letter), Letter)
        if read.wish == "refund" and read.amount > 0:
            task = f"Refund {read.amount:g} euros for order {read.order}, and tell the customer."
        else:
            task = f"Answer the question about order {read.order}."
        written = await writing.run(f"{task}\nThe letter: {letter}")
        reply = output_of(written, Reply)
        decision: Literal["refunded", "denied", "answered"] = "refunded" if reply.refunded else "denied"
        if read.wish == "question":
            decision = "answered"
        return Answer(decision=decision, text=reply.text, trace_id=written.trace_id)


async def send_letter(workflow_id: str, letter: str) -> None:
    """Start the workflow of a letter; it goes on without this process."""
    client = await connect()
    queue = os.environ.get("MULLIGAN_TASK_QUEUE", "agents")
    await client.start_workflow("RefundDesk", letter, id=workflow_id, task_queue=queue)


def _order(messages: Sequence[Message]) -> int:
    return 8 if "order 8" in messages[0].text.lower() else 7


def _says_what_it_read(messages: Sequence[Message]) -> Say:
    # Invalid on purpose: there is no such wish. The model gets feedback, and corrects itself.
    return Say(calls=[Call("Letter", {"wish": "money back", "order": 7, "amount": float(last_result(messages))})])


def _corrects(messages: Sequence[Message]) -> Say:
    order = _order(messages)
    return Say(calls=[Call("Letter", {"wish": "refund", "order": order, "amount": PRICES[order]})])


def _refunds(messages: Sequence[Message]) -> Say:
    order = _order(messages)
    return Say(calls=[Call("refund", {"order": order, "euros": PRICES[order]})])


def _replies(messages: Sequence[Message]) -> Say:
    order = _order(messages)
    if "Paid" in last_result(messages):
        reply = {"text": f"We are sorry, and have paid {PRICES[order]:g} euros back.", "refunded": PRICES[order]}
    else:
        reply = {"text": "We are sorry, but we cannot pay this back."}
    return Say(calls=[Call("Reply", reply)])


reader_script = Script(
    "reader",
    [lambda messages: Say(calls=[Call("price_of", {"order": _order(messages)})]), _says_what_it_read, _corrects],
)
clerk_script = Script("clerk", [_refunds, _replies])

if __name__ == "__main__":
    asyncio.run(send_letter(*sys.argv[1:]))
