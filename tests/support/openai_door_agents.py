"""Agents that are called through OpenAI's protocol. A request cannot choose their model: their scripts go by the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from mulligan import Agent
from mulligan.tools import ask_person
from tests.support.openai_turn import Turn
from tests.support.people_agents import refund
from tests.support.shop_agents import click, search_orders

MODEL = "behind-the-door"


class Label(BaseModel):
    name: str


seller = Agent(
    name="seller", model=f"openai-chat:{MODEL}", tools=[search_orders, click, refund, ask_person], max_steps=3
)
labeller = Agent(name="labeller", model=f"openai-chat:{MODEL}", output=Label)
manager = Agent(
    name="manager", model=f"openai-chat:{MODEL}", tools=[seller.as_tool(description="Handles orders.")], max_steps=3
)
ignoring = Agent(name="ignoring", model=f"openai-chat:{MODEL}", client_instructions="ignore")
refusing = Agent(name="refusing", model=f"openai-chat:{MODEL}", client_instructions="refuse")
strict = Agent(name="strict_seller", model=f"openai-chat:{MODEL}", tools=[search_orders], handle_errors=False)

LONG = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 6
LOOK = Turn("Let me look.", calls=[("search_orders", "{'customer': 'Ada',}", "a"), ("serch_orders", "{}", "b")])
REFUND = Turn(calls=[("refund", '{"order": 7, "amount": {"euros": 2}}', "r")])
ASK = Turn(calls=[("ask_person", '{"question": "Which?"}', "q")])
SCRIPTS: dict[str, Sequence[Turn]] = {
    "Look.": [LOOK, Turn("It is order 7.")],
    "Say hello.": [Turn("Hello."), Turn("Hello again.")],
    "Give it back.": [REFUND, Turn("Given back.")],
    "Ask me.": [ASK, Turn("Thank you.")],
    "Give back and ask.": [Turn(calls=[*REFUND.calls, *ASK.calls]), Turn("Given back.")],
    "Let it be done.": [Turn(calls=[("seller", '{"prompt": "Give back and ask."}', "d")]), Turn("It is done.")],
    "Label it.": [Turn(calls=[("Label", '{"name": "blue"}', "l")])],
    "Label it at last.": [Turn("It is blue."), Turn(calls=[("Label", '{"name": "blue"}', "l")])],
    "Fail.": [Turn(calls=[("nothing", "{}", "n")])],
}


def scripted(scripts: Mapping[str, Sequence[Turn]]) -> Any:
    """A script of the model, by the first prompt."""

    def turn(request: dict[str, Any], nth: int) -> Turn:
        prompt = next(message["content"] for message in request["messages"] if message["role"] == "user")
        return scripts[prompt][nth]

    return turn
