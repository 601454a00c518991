"""Agents behind `/v1` for requests that a chat front end sends beside the conversation."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan import Agent
from mulligan.features.calls_in_text import CallsInText
from tests.support.openai_door_agents import MODEL
from tests.support.shop_agents import search_orders

SMALL = "small-behind-the-door"


class Label(BaseModel):
    name: str


equipped = Agent(
    name="equipped",
    model=f"openai-chat:{MODEL}",
    instructions="Sell something.",
    tools=[search_orders],
    output=Label,
    features=[CallsInText()],
    model_settings={"temperature": 0.5},
)
listing = Agent(name="listing", model=f"openai-chat:{MODEL}", tools=lambda run_input: [search_orders])
refusing = Agent(name="refusing", model=f"openai-chat:{MODEL}", client_instructions="refuse", tools=[search_orders])
titles = Agent(name="titles", model=f"openai-chat:{SMALL}", instructions="Write titles.")
