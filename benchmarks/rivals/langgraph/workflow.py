"""The graph and the workflow. A module of their own, because the plugin refuses nodes that are defined in `__main__`."""

import asyncio
import operator
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, TypedDict

from langchain.chat_models import init_chat_model
from langchain_core.messages import ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from temporalio import workflow
from temporalio.langgraph import graph

from benchmarks.passage import A_DAY, HOLD, passage


class State(TypedDict):
    """The conversation. Messages are objects of LangChain where a node makes them, and dicts after an activity's result."""

    messages: Annotated[list[Any], operator.add]


@tool
async def look(number: int) -> str:
    """Give 1 KB."""
    if number == HOLD:
        await asyncio.sleep(A_DAY)
    return passage(number)


@cache
def model() -> Runnable[Any, Any]:
    """The model, made in the first activity: in the sandbox its import would be repeated for each workflow."""
    return init_chat_model("openai:bench").bind_tools([look])


async def ask(state: State) -> dict[str, Any]:
    """Ask the model."""
    return {"messages": [await model().ainvoke(state["messages"])]}


async def act(state: State) -> dict[str, Any]:
    """Run the tool calls of the newest message."""
    calls = state["messages"][-1]["tool_calls"]
    texts = [await look.ainvoke(call["args"]) for call in calls]
    return {"messages": [ToolMessage(text, tool_call_id=call["id"]) for call, text in zip(calls, texts, strict=True)]}


async def after_answer(state: State) -> str:
    """Continue with the tool calls, if there are any. It runs in the workflow, and has to be async there."""
    return "act" if state["messages"][-1]["tool_calls"] else END


def bench() -> StateGraph[State]:
    """The graph: ask the model, run its tool calls, ask again."""
    made = StateGraph(State)
    an_activity = {"execute_in": "activity", "start_to_close_timeout": timedelta(seconds=60)}
    made.add_node("ask", ask, metadata=an_activity)
    made.add_node("act", act, metadata=an_activity | {"start_to_close_timeout": timedelta(seconds=A_DAY)})
    made.add_edge(START, "ask")
    made.add_conditional_edges("ask", after_answer)
    made.add_edge("act", "ask")
    return made


@workflow.defn
class BenchWorkflow:
    """One run."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        state = {"messages": [{"role": "user", "content": prompt}]}
        ended = await graph("bench").compile().ainvoke(state, {"recursion_limit": 1_000_000})
        return str(ended["messages"][-1]["content"])
