"""The graph and the workflow of LangGraph. A module of their own, because the plugin refuses nodes of `__main__`.

A node is one activity, which makes all calls of a step: so `fetch` is attempted as often as `pay`.
"""

import operator
from functools import cache
from typing import Annotated, Any, TypedDict

from langchain.chat_models import init_chat_model
from langchain_core.messages import ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from temporalio import workflow
from temporalio.langgraph import graph

from tests.chaos.rivals.effects import HEARTBEAT, LIMIT, PAY, effect


class State(TypedDict):
    """The conversation. Messages are objects of LangChain where a node makes them, and dicts after an activity's result."""

    messages: Annotated[list[Any], operator.add]


@tool
async def pay(milliseconds: int) -> str:
    """An effect that must happen at most once."""
    await effect("pay", milliseconds)
    return "paid"


@tool
async def fetch(milliseconds: int) -> str:
    """An effect that may be repeated twice."""
    await effect("fetch", milliseconds)
    return "fetched"


TOOLS = {"pay": pay, "fetch": fetch}


@cache
def model() -> Runnable[Any, Any]:
    """The model, made in the first activity: in the sandbox its import would be repeated for each workflow."""
    return init_chat_model("openai:chaos").bind_tools([*TOOLS.values()])


async def ask(state: State) -> dict[str, Any]:
    """Ask the model."""
    return {"messages": [await model().ainvoke(state["messages"])]}


async def act(state: State) -> dict[str, Any]:
    """Run the tool calls of the newest message."""
    calls = state["messages"][-1]["tool_calls"]
    texts = [await TOOLS[call["name"]].ainvoke(call["args"]) for call in calls]
    return {"messages": [ToolMessage(text, tool_call_id=call["id"]) for call, text in zip(calls, texts, strict=True)]}


async def after_answer(state: State) -> str:
    """Continue with the tool calls, if there are any. It runs in the workflow, and has to be async there."""
    return "act" if state["messages"][-1]["tool_calls"] else END


def clerk() -> StateGraph[State]:
    """The graph: ask the model, run its tool calls, ask again."""
    made = StateGraph(State)
    an_activity = {"execute_in": "activity", "start_to_close_timeout": LIMIT, "heartbeat_timeout": HEARTBEAT}
    made.add_node("ask", ask, metadata=an_activity)
    made.add_node("act", act, metadata=an_activity | {"retry_policy": PAY})
    made.add_edge(START, "ask")
    made.add_conditional_edges("ask", after_answer)
    made.add_edge("act", "ask")
    return made


@workflow.defn
class ChaosWorkflow:
    """One run."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        state = {"messages": [{"role": "user", "content": prompt}]}
        ended = await graph("clerk").compile().ainvoke(state, {"recursion_limit": 1_000_000})
        return str(ended["messages"][-1]["content"])
