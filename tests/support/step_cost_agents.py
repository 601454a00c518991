"""Agents whose steps are measured: one without features, and one for each feature."""

from __future__ import annotations

from pathlib import Path

from mulligan import (
    Agent,
    Background,
    Batch,
    CallsInText,
    ClearToolResults,
    CodeMode,
    Compaction,
    Guarded,
    McpServer,
    Skills,
    ToolContext,
    tool,
)
from tests.support.background_agents import count_words
from tests.support.mcp_agents import SERVER

CHAT = "openai-chat:step-cost"


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: nothing new"


@tool(needs_approval=True)
async def leave(place: str) -> str:
    """Leave a place."""
    return f"{place}: left"


@tool(once=True)
async def pay(place: str) -> str:
    """Pay for a place."""
    return f"{place}: paid"


@tool(deferred=True)
async def order(place: str, ctx: ToolContext) -> str:
    """Order a look at a place."""
    return f"{place}: ordered as {ctx.call_id}"


@tool
async def read(place: str) -> str:
    """Read all about a place."""
    return f"{place}: {'a line about it. ' * 400}"


plain = Agent(name="plain", model=CHAT, tools=[look])
asking = Agent(name="asking", model=CHAT, tools=[leave])
paying = Agent(name="paying", model=CHAT, tools=[pay])
undoing = Agent(name="undoing", model=CHAT, tools=[tool(undo=lambda arguments, result, ctx: None)(look.function)])
ordering = Agent(name="ordering", model=CHAT, tools=[order])
coding = Agent(name="coding", model=CHAT, tools=[look], features=[CodeMode()])
receiving = Agent(name="receiving", model=CHAT, tools=[look], handoffs=["handing_over"])
handing_over = Agent(name="handing_over", model=CHAT, tools=[look], handoffs=[receiving])
reading = Agent(name="reading", model=CHAT, tools=[read], features=[Compaction(at=1_000)])
searching = Agent(name="searching", model=CHAT, tools=[tool(on_demand=True)(look.function)])
forgetting = Agent(name="forgetting", model=CHAT, tools=[read], features=[ClearToolResults(at=1_000, keep_steps=1)])
remembering = Agent(name="remembering", model=CHAT, tools=[look], features=[ClearToolResults(at=10**6)])
guarding = Agent(name="guarding", model=CHAT, tools=[tool(trust="untrusted")(look.function)], features=[Guarded()])
skilled = Agent(name="skilled", model=CHAT, features=[Skills(Path(__file__).with_name("step_cost_skills"))])
with_room = Agent(name="with_room", model=CHAT, tools=[look], features=[Compaction(at=10**6)])
writing_calls = Agent(name="writing_calls", model=CHAT, tools=[look], features=[CallsInText()])
in_background = Agent(name="in_background", model="openai:step-cost", tools=[look], features=[Background()])
in_batches = Agent(name="in_batches", model="openai:step-cost", tools=[count_words], features=[Batch()])
failing_over = Agent(name="failing_over", model=[CHAT, "openai-chat:step-cost-second"], tools=[look])
helper = Agent(name="step_cost_helper", model="openai-chat:step-cost-helper")
boss = Agent(name="boss", model=CHAT, tools=[helper.as_tool(name="ask_helper", description="Ask for help.")])
booking = Agent(name="booking", model=CHAT, mcp=[McpServer("web", command=SERVER, env={"ASKS": "1"}, include=["book"])])
