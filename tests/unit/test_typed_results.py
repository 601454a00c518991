"""Results have the type of the agent's output, at runtime and for type checkers.

`make lint` checks each `assert_type` with mypy, tests/system/test_pyright.py with pyright.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from pydantic import BaseModel
from temporalio import workflow

from mulligan import Agent, Call, DurableAgent, ProviderStrategy, RunResult, Say, ToolContext, ToolStrategy, tool
from mulligan.testing import AgentRun, ScriptedModel, run_agent, run_workflow


class Refund(BaseModel):
    order: int


class Refusal(BaseModel):
    reason: str


@dataclass
class FakeShop:
    """In place of the connections that a worker's modules open."""

    stock: dict[str, int]


@tool
def stock(article: str, ctx: ToolContext) -> int:
    """Say how many there are."""
    shop: FakeShop = ctx.resources
    return shop.stock[article]


keeper = Agent(name="keeper", model="scripted:keeper", tools=[stock], output=list[int])
desk = Agent(name="desk", model="scripted:desk", output=Refund)
by_tool = Agent(name="by_tool", model="scripted:desk", output=ToolStrategy(Refund))
by_provider = Agent(name="by_provider", model="scripted:desk", output=ProviderStrategy(Refund))
judge = Agent[Refund | Refusal](name="judge", model="scripted:judge", output=Refund | Refusal)
numbers = Agent(name="numbers", model="scripted:numbers", output=list[int])
plain = Agent(name="plain", model="scripted:text")
REFUND = Say(calls=[Call("Refund", {"order": "7"})])


@workflow.defn
class Desk:
    """A turn of an agent that is passed as an object, and one of an agent that is named."""

    @workflow.run
    async def run(self) -> list[Any]:
        typed = await DurableAgent(desk).run("Refund it.")
        assert_type(typed, RunResult[Refund])
        assert_type(typed.output, Refund)
        stopped = await DurableAgent(desk).run("Refund it.", max_steps=1, model="scripted:text")
        named = await DurableAgent("desk").run("Refund it.")
        assert_type(named.output, Any)
        chosen = await DurableAgent(judge).run("Refund it.")
        assert_type(chosen.output, Refund | Refusal)
        ids = await DurableAgent(numbers).run("Which?")
        assert_type(ids.output, list[int])
        text = await DurableAgent(plain).run("Hello.")
        assert_type(text.output, Any)
        is_typed = [typed.output.order == 7, stopped.output is None, isinstance(chosen.output, Refusal)]
        return [*is_typed, named.output, ids.output, text.output, typed]


async def test_the_output_of_a_turn_is_an_object_where_the_agent_is_passed_as_one() -> None:
    models = [
        ScriptedModel(REFUND, name="desk"),
        ScriptedModel(Say(calls=[Call("Refusal", {"reason": "late"})]), name="judge"),
        ScriptedModel(Say(calls=[Call("list", {"value": [1, "2"]})]), name="numbers"),
        ScriptedModel("Hi.", name="text"),
    ]
    agents = [desk, judge, numbers, plain]
    *outputs, typed = await run_workflow(Desk, agents=agents, models=models)
    assert outputs == [True, True, True, {"order": 7}, [1, 2], "Hi."]
    read = RunResult[Refund].model_validate(typed)
    assert_type(read.output, Refund)
    assert read.output == Refund(order=7)


async def test_the_output_of_run_agent_is_an_object() -> None:
    run = await run_agent(desk, "Refund it.", model=ScriptedModel(REFUND))
    assert_type(run.output, Refund)
    assert run.output.order == 7
    for agent in (by_tool, by_provider):
        assert_type(agent, Agent[Refund])
    assert run.result is not None
    assert_type(run.result.output, Refund)
    missing = await run_agent(desk, "Refund it.", model=ScriptedModel("No."), max_steps=1)
    assert missing.output is None


async def test_fake_resources_of_any_type_keep_the_type_of_the_output() -> None:
    turns = Say(calls=[Call("stock", {"article": "tea"})]), Say(calls=[Call("list", {"value": [3]})])
    run = await run_agent(keeper, "How many?", model=ScriptedModel(*turns), resources=FakeShop({"tea": 3}))
    assert_type(run, AgentRun[list[int]])
    assert next(call.result.text for call in run.calls if call.result) == "3"
    assert run.output == [3]
