"""`RefundDesk`: two agents in one workflow, with plain code between them.

The first reads a letter into a typed object, code decides by it, the second answers in several turns of one conversation.
Its models are scripted, so it runs without a key; put `openai:gpt-5-mini` in their place and it runs as well.

    uv run mulligan worker --load examples.refund_desk
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from temporalio import workflow

from mulligan import Agent, Call, DurableAgent, Message, Say, Script, last_result, output_of, tool

LIMIT = 100.0
"""Euros up to which a refund is made at once."""


class Letter(BaseModel):
    """What a customer wants."""

    wish: Literal["refund", "question"]
    order: int
    amount: Annotated[float, Field(ge=0)] = 0


class Answer(BaseModel):
    """The decision on a letter, and the text to send."""

    decision: Literal["refunded", "waits", "answered"]
    text: str
    trace_id: str


@tool
async def price_of(order: int) -> float:
    """The price of an order, in euros."""
    return {7: 40.0, 8: 250.0}.get(order, 0.0)


reader = Agent(
    name="reader",
    model="scripted:reader",
    instructions="You read letters to a shop, and say what the customer wants. Look the price up.",
    tools=[price_of],
    output=Letter,
)
clerk = Agent(
    name="clerk", model="scripted:clerk", instructions="You write a shop's answers: kind, short, no promises."
)


@workflow.defn
class RefundDesk:
    """One letter, from its reading to its answer."""

    @workflow.run
    async def run(self, letter: str) -> Answer:
        """Read, decide, answer."""
        reading, writing = DurableAgent("reader"), DurableAgent("clerk")
        read = output_of(await reading.run(letter), Letter)
        decision: Literal["refunded", "waits", "answered"]
        if read.wish == "question":
            decision = "answered"
        elif read.amount <= LIMIT:
            decision = "refunded"
        else:
            # A person decides on such an amount; here, a timer stands for the person.
            decision = "waits"
            await workflow.sleep(timedelta(seconds=1))
        await writing.run(f"The letter: {letter}\nThe decision: {decision}. Write the answer.")
        final = await writing.run("Make it one sentence.")
        return Answer(decision=decision, text=str(final.output), trace_id=final.trace_id)


def _reads(messages: Sequence[Message]) -> Say:
    order = 8 if "8" in messages[0].text else 7
    return Say(calls=[Call("price_of", {"order": order})])


def _says_what_it_read(messages: Sequence[Message]) -> Say:
    # Invalid on purpose: there is no such wish. The model gets feedback, and corrects itself.
    return Say(calls=[Call("Letter", {"wish": "money back", "order": 7, "amount": float(last_result(messages))})])


def _corrects(messages: Sequence[Message]) -> Say:
    order = 8 if "8" in messages[0].text else 7
    return Say(calls=[Call("Letter", {"wish": "refund", "order": order, "amount": 250 if order == 8 else 40})])


reader_script = Script("reader", [_reads, _says_what_it_read, _corrects])
clerk_script = Script(
    "clerk",
    [
        Say("Dear customer, thank you for your letter. We have looked at it with care."),
        Say("Thank you for your letter; we have looked at it with care."),
    ],
)
