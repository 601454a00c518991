"""Agents whose runs the console shows: scripted mistakes, repairs, approvals, questions, sub-agents, hostile text, many steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from mulligan import Agent, Call, InvalidToolInput, Message, Say, Script, ToolContext, ToolError, last_result, tool
from mulligan.tools import ask_person

SCRIPT_TAG = '<script>window.hacked = true</script><img src=x onerror="window.hacked = true">'
RIGHT_TO_LEFT = "invoice\u202egpj.exe\u202c"
LONG_LINE = "x" * 1_000_000


class Amount(BaseModel):
    euros: Annotated[float, Field(gt=0, le=500, description="How much, in euros.")]
    reason: Literal["damaged", "late", "wrong item"] = "damaged"


def customer_is_name(invalid: InvalidToolInput) -> object | None:
    if isinstance(invalid.arguments, dict) and "name" in invalid.arguments:
        return {"customer": invalid.arguments["name"]}
    return None


@tool(fix=customer_is_name)
async def find_orders(customer: str, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> list[dict[str, Any]]:
    """Find the orders of a customer, the newest first.

    Args:
        customer: The customer's name.
        limit: How many at most.
    """
    await asyncio.sleep(0.3)
    return [
        {"order": 7, "item": "Teapot, green", "paid": 48.0, "status": "delivered"},
        {"order": 4, "item": "Cups", "paid": 31.5},
    ][:limit]


@tool
async def track_parcel(order: int) -> str:
    """Where the parcel of an order is."""
    await asyncio.sleep(0.2)
    if order != 7:
        raise ToolError(f"There is no order {order}.")
    return "Delivered on Tuesday, 09:12. The driver noted: box dented at one corner."


@tool(needs_approval=True)
def refund(order: int, amount: Amount, note: str, ctx: ToolContext) -> str:
    """Give money back to the customer.

    Args:
        order: The order's number.
        note: What the customer reads on the statement.
    """
    return f"Refunded {amount.euros:.2f} euros for order {order}: {note}"


def _question(messages: Sequence[Message]) -> Say:
    return Say(
        "Before I close this, one thing.", [Call("ask_person", {"question": "Shall Ada get a voucher as well?"})]
    )


support_script = Script(
    "support-desk",
    [
        Say("I will look at Ada's orders first.", [Call("list_orders", {"customer": "Ada Lovelace"})]),
        Say("", [Call("find_orders", "{'name': 'Ada Lovelace',}")]),
        Say("Order 7 is the teapot. Where is its parcel?", [Call("track_parcel", {"order": "seven"})]),
        Say(
            "", [Call("track_parcel", {"order": 7}), Call("policy_reader", {"prompt": "What is the rule for damage?"})]
        ),
        Say(
            "The box was dented on delivery, and our rule covers that. I would like to refund the teapot.",
            [
                Call(
                    "refund", {"order": 7, "amount": {"euros": 48.0, "reason": "damaged"}, "note": "Teapot, dented box"}
                )
            ],
        ),
        _question,
        lambda messages: Say(f"Ada has her money back. About the voucher I was told: “{last_result(messages)}”"),
    ],
)
policy_script = Script(
    "policy_reader",
    [
        Say("", [Call("read_rule", {"topic": "damage"})]),
        Say("Damage noted by the driver is refunded in full within 14 days."),
    ],
)


@tool
async def read_rule(topic: str) -> str:
    """Read a rule of the shop."""
    await asyncio.sleep(0.2)
    return f"Rule 12 ({topic}): what the driver noted is refunded in full, within 14 days."


policy_reader = Agent(
    name="policy_reader",
    model="scripted:policy_reader",
    instructions="You read the shop's rules.",
    tools=[read_rule],
)
support_desk = Agent(
    name="support-desk",
    model="scripted:support-desk",
    instructions="You help the customers of a tea shop. Be kind, and check before you promise.",
    tools=[
        find_orders,
        track_parcel,
        refund,
        ask_person,
        policy_reader.as_tool(description="Answers a question about the shop's rules."),
    ],
    max_steps=20,
)


def euros_are_a_number(invalid: InvalidToolInput) -> object | None:
    given = invalid.arguments
    if isinstance(given, dict) and isinstance(given.get("euros"), str):
        return {**given, "euros": given["euros"].removesuffix(" euros")}
    return None


@tool(needs_approval=True, fix=euros_are_a_number)
def pay_back(order: int, euros: float) -> str:
    """Pay money back for an order."""
    return f"{euros:.2f} euros are paid back for order {order}."


tea_shop_script = Script(
    "tea-shop",
    [
        Say("I pay it back.", [Call("refund_order", {"order": 7})]),
        Say("Then with the right tool.", [Call("pay_back", {"order": 7, "euros": "48 euros"})]),
        Say("Ada has her money back."),
    ],
)
tea_shop = Agent(name="tea-shop", model="scripted:tea-shop", tools=[pay_back])
"""A mistake, the repair of a call and an approval, in two steps: README's picture."""


@tool
def read_mail(folder: str) -> str:
    """Read the newest mail of a folder."""
    return f"{SCRIPT_TAG}\n{RIGHT_TO_LEFT}\n{LONG_LINE}"


hostile_script = Script(
    "hostile",
    [
        Say(f"I say {SCRIPT_TAG} and {RIGHT_TO_LEFT}", [Call("read_mail", {"folder": SCRIPT_TAG})]),
        Say("", [Call(SCRIPT_TAG[:60], {"x": 1}), Call("read_mail", f'{{"folder": "{RIGHT_TO_LEFT}"')]),
        Say("", [Call("wire_money", {"to": RIGHT_TO_LEFT, "note": SCRIPT_TAG})]),
        Say(SCRIPT_TAG),
    ],
)


@tool(needs_approval=True)
def wire_money(to: str, note: str) -> str:
    """Wire money."""
    return f"wired to {to}"


hostile = Agent(name="hostile", model="scripted:hostile", tools=[read_mail, wire_money], max_steps=10)


@tool
async def count(number: int) -> str:
    """Say a number."""
    if number % 40 == 3:
        raise ToolError(f"{number} cannot be said.")
    return f"{number}. " + "Said with care. " * 6


MANY = int(os.environ.get("CONSOLE_STEPS", "130"))
"""More than a page has, and than one that follows keeps."""
counter_script = Script(
    "counter",
    [
        *(Say(f"Number {number}.", [Call("count", {"number": number})]) for number in range(1, MANY)),
        Say("All counted."),
    ],
)
counter = Agent(name="counter", model="scripted:counter", tools=[count], max_steps=MANY + 10, max_repeats=None)

WORDS = "The kettle sings and the leaves unfold, and somebody at the window counts the parcels going out. "
teller_script = Script(
    "teller",
    [
        Say("", [Call("count", {"number": 1})]),
        Say(WORDS * 3, pace=0.05),
    ],
)
teller = Agent(name="teller", model="scripted:teller", tools=[count])
"""Writes slowly, so that its text can be watched."""

slow_script = Script("slow-teller", [Say("", [Call("count", {"number": 1})]), Say(WORDS * 12, pace=0.08)])
slow_teller = Agent(name="slow-teller", model="scripted:slow-teller", tools=[count])
"""Writes for a quarter of a minute."""

uneven_script = Script(
    "uneven",
    [
        *(
            Say("", [Call("count", {"number": number + 100 * each}) for each in range(30 if number in (49, 90) else 1)])
            for number in range(1, 110)
        ),
        Say("All counted."),
    ],
)
uneven = Agent(name="uneven", model="scripted:uneven", tools=[count], max_steps=200, max_repeats=None)
"""Most of its 110 steps have one call, two have thirty."""


def _next_chapter(messages: Sequence[Message]) -> Say:
    number = 1 + sum(message.role == "tool" for message in messages)
    return Say(f"Chapter {number}. {WORDS * 2}", [Call("count", {"number": number})], pace=0.06)


narrator_script = Script("narrator", [_next_chapter])
narrator = Agent(name="narrator", model="scripted:narrator", tools=[count], max_steps=100_000, max_repeats=None)
"""Writes without end, a step in about three seconds; every fortieth has a mistake."""


@tool(handle_errors=False)
def sign(paper: str) -> str:
    """Sign a paper."""
    raise ToolError("There is no pen.")


def _end_of_misreader(messages: Sequence[Message]) -> Say:
    prompt = next(message.text for message in messages if message.role == "user")
    calls = {"ask": [Call("wire_money", {"to": "Ada", "note": "tea"})], "break": [Call("sign", {"paper": "lease"})]}
    return Say("", calls[prompt]) if prompt in calls else Say("Done.")


misreader_script = Script(
    "misreader",
    [
        Say("", [Call("count_all"), Call("count", {"number": "three"})]),
        Say("", [Call("count", {"number": "four"}), Call("count", {"number": 3})]),
        _end_of_misreader,
        Say("Done."),
    ],
)
misreader = Agent(name="misreader", model="scripted:misreader", tools=[count, wire_money, sign])
"""Four mistakes in each run; the prompts `ask` and `break` make it wait for approval, and fail."""

late_mistake_script = Script(
    "late-mistake",
    [
        *(Say("", [Call("count", {"number": number})]) for number in (101, *range(4, 41), *range(44, 75))),
        Say("Now two at once, with care.", [Call("count", {"number": 1}), Call("count", {"number": 3})]),
        Say("", [Call("count", {"number": 1})]),
        Say("All counted."),
    ],
)
late_mistake = Agent(name="late-mistake", model="scripted:late-mistake", tools=[count], max_steps=100, max_repeats=None)
"""The only mistake of its 72 steps is in step 70, on the second page of the console."""
