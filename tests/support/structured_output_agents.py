"""Agents with structured output in every form in which it can be declared, and fixers that ask a second model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, Field, ValidationError, field_validator

from mulligan import Agent, CallsInText, ProviderStrategy, Tool, ToolContext, ToolStrategy, ask_model, tool
from tests.support.shop_agents import RAN, click, explode, now, search_orders

MODEL = "openai-chat:nobody"


class Refund(BaseModel):
    """Money goes back."""

    order: int
    amount: Annotated[float, Field(gt=0)]
    reason: str = "none given"

    @field_validator("order")
    @classmethod
    def known(cls, order: int) -> int:
        if order == 13:
            raise ValueError("order 13 is cursed")
        return order


@dataclass
class Exchange:
    """Something else is sent."""

    order: int
    instead: str


class Note(TypedDict):
    text: str
    tags: list[str]


PLAN = {
    "title": "Plan",
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "urgent": {"type": "boolean"},
    },
    "required": ["steps"],
    "additionalProperties": False,
}
TOOLS: list[Tool] = [search_orders, click, now, explode]


def agent(name: str, output: Any, **options: Any) -> Agent:
    return Agent(name=name, model=MODEL, tools=TOOLS, output=output, max_steps=6, model_patience=3, **options)


refund = agent("refund", Refund)
either = agent("either", Refund | Exchange)
note = agent("note", Note)
plan = agent("plan", PLAN)
numbers = agent("numbers", list[int])
maybe = agent("maybe", Refund | None)
written = agent("written", ProviderStrategy(Refund))
written_either = agent("written_either", ProviderStrategy(Refund | Exchange))
written_plan = agent("written_plan", ProviderStrategy(PLAN))
listed = agent("listed", ToolStrategy([PLAN, {**PLAN, "title": "Wish"}], or_text=True))
noted = agent("noted", ToolStrategy(Refund, tool_message_content="Refund noted."))


def say_what(error: Any) -> str:
    return f"{type(error).__name__} {error.kind}: try again"


strict_output = agent("strict_output", ToolStrategy(Refund | Exchange, handle_errors=False))
own_text = agent("own_text", ToolStrategy(Refund, handle_errors="Mind the amount."), handle_errors=False)
by_type = agent("by_type", ToolStrategy(Refund, handle_errors=ValidationError))
by_function = agent("by_function", Refund, handle_errors=say_what)


class Payment(BaseModel):
    iban: Annotated[str, Field(min_length=5)]
    amount: float


@tool(fix=ask_model("openai-chat:mender"))
def pay(payment: Payment, ctx: ToolContext) -> str:
    """Pay."""
    RAN[ctx.workflow_id].append(("pay", payment.model_dump()))
    return f"paid {payment.amount:g}"


mended_by_model = Agent(name="mended_by_model", model=MODEL, tools=[pay, now], model_patience=3)
repaired_by_model = Agent(
    name="repaired_by_model", model=MODEL, tools=[click, now], repair=ask_model("openai-chat:mender"), model_patience=3
)

OPENED: list[str] = []


@asynccontextmanager
async def resources() -> AsyncIterator[dict[str, str]]:
    OPENED.append("opened")
    yield {"shop": "on the corner"}
    OPENED.append("closed")


@tool
async def where(ctx: ToolContext) -> str:
    """Where the shop is."""
    return f"{ctx.resources['shop']}, {ctx.metadata.get('city', 'nowhere')}"


@tool
def where_by_thread(kind: Literal["street"], ctx: ToolContext) -> str:
    """The same from a thread."""
    return str(ctx.resources["shop"])


resourceful = Agent(name="resourceful", model=MODEL, tools=[where, where_by_thread])

wordy = Agent(
    name="wordy",
    model=MODEL,
    instructions="You work in a shop.",
    tools=[click, now, search_orders],
    features=[CallsInText()],
)
