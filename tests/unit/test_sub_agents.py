"""Agents as tools: their declaration, the ids and budgets of their runs, and runs of them without a server."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.research_team import editor, editor_script, researcher_script, translator_script
from mulligan import (
    Agent,
    Call,
    CodeMode,
    DeclarationError,
    Say,
    Script,
    Tool,
    ToolExecutionError,
    ToolTimeoutError,
    tool,
)
from mulligan.activities.registry import Registry
from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import RunResult, Usage
from mulligan.wire.agent_facts import AgentFacts, Definition, ToolFacts
from mulligan.wire.start_input import StartInput
from mulligan.worker.loading import load
from mulligan.workflows.sub_agents import sub_agents
from mulligan.workflows.sub_agents.sub_agents import budget_share, child_workflow_id, remaining_depth
from mulligan.workflows.turn import Turn

ROOT = Path(__file__).parents[2]
[PAGE] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/sub-agents.md").read_text(), re.DOTALL)


@tool
async def look(where: str) -> str:
    """Look."""
    if where == "everywhere":
        await asyncio.sleep(50)
    return f"nothing in {where}"


worker = Agent(name="worker", model="openai:nobody", tools=[look], max_steps=2)
boss = Agent(name="boss", model="openai:nobody", tools=[worker.as_tool(description="Works.")])
strict = Agent(name="strict", model="openai:nobody", tools=boss.tools, handle_errors=False)


def test_an_agent_as_a_tool_takes_a_prompt_and_the_given_options() -> None:
    made = worker.as_tool(description="Works.", name="do_it", timeout=timedelta(hours=1), handle_errors="no")
    assert (made.name, made.description, made.timeout, made.handle_errors) == (
        "do_it",
        "Works.",
        timedelta(hours=1),
        "no",
    )
    assert made.schema["required"] == ["prompt"]
    assert list(made.schema["properties"]) == ["prompt"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"description": " "}, "description is empty; say what the agent is good for."),
        ({"description": "x", "name": "a b"}, "letters, digits, '_' or '-': give the tool one, as_tool(name=…)."),
        ({"description": "x", "timeout": 0}, "timeout is 0; give more than 0 seconds, or None."),
        (
            {"description": "x", "needs_approval": 5},
            "needs_approval must be True, False, the name of a role, or a function",
        ),
    ],
)
def test_an_invalid_option_is_refused_at_declaration(options: dict[str, Any], fault: str) -> None:
    """The error is one sentence that begins with the agent's file."""
    with pytest.raises(DeclarationError) as error:
        worker.as_tool(**options)
    assert fault in str(error.value)
    assert str(error.value).startswith(f"{__file__}: tool ")


def test_max_depth_must_be_a_whole_number() -> None:
    for wrong in (-1, True, 1.5):
        with pytest.raises(DeclarationError, match=r"max_depth is .*; it must be a whole number, 0 or more"):
            Agent(name="x", model="openai:x", max_depth=wrong)  # type: ignore[arg-type]


def test_max_sub_runs_must_be_a_whole_number() -> None:
    for wrong in (-1, True, 1.5):
        with pytest.raises(DeclarationError, match=r"max_sub_runs is .*; it must be a whole number, 0 or more"):
            Agent(name="x", model="openai:x", max_sub_runs=wrong)  # type: ignore[arg-type]


def test_agents_that_others_call_are_served_too() -> None:
    """Agents may call each other. Tools that are added later count too. Two agents of the same name are refused."""
    tools: list[Tool] = []
    first = Agent(name="first", model="openai:x", tools=tools)
    second = Agent(name="second", model="openai:x", tools=[first.as_tool(description="x")])
    tools += [second.as_tool(description="x"), first.as_tool(description="x")]
    assert sorted(Registry([first]).agents) == ["first", "second"]
    assert sorted(Registry([], tools=[boss.listed_tools[0]]).agents) == ["worker"]
    assert "worker" in load(["tests.unit.test_sub_agents"]).registry.agents
    tools.append(look)
    tools.append(look)
    with pytest.raises(DeclarationError, match="two tools are named 'look'"):
        Registry([first])
    other = Agent(name="worker", model="openai:x")
    with pytest.raises(DeclarationError, match="two agents are named 'worker'"):
        Registry([boss, other])


def test_the_id_of_a_run_is_unique_and_bounded() -> None:
    """It is readable, has a dot that no call's id has, and fits into a database's column."""
    assert child_workflow_id("run", "call_1", "0") == "run/call_1"
    assert child_workflow_id("run", "call_1", "2", 3) == "run/call_1.2.again3"
    long = [child_workflow_id(parent, "c" * 64, "11", 3) for parent in ("a" * 200, "é" * 200, "a" * 1000)]
    assert len({*long}) == 3
    assert all(len(each.encode()) <= 255 for each in long)


def turn(**given: Any) -> Turn:
    facts = AgentFacts(
        model="m",
        max_steps=1,
        max_sub_runs=1,
        model_timeout=1,
        model_patience=1,
        tools={},
        definition=Definition(instructions="", tools=[]),
        digest="",
    )
    used = RunResult(status="completed", usage=Usage(input_tokens=60, output_tokens=40))
    return Turn(number=1, input=StartInput(agent="a", **given), facts=facts, trace="", result=used, spent=0.5)


def test_the_rest_of_the_budget_is_divided() -> None:
    """The sub-agent's own limit applies as well. If nothing is left, there is no share."""
    free, bounded = ToolFacts(timeout=0), ToolFacts(timeout=0, max_total_tokens=50, max_cost=0.01)
    assert budget_share(turn(), free, 1) == {}
    assert budget_share(turn(max_total_tokens=400, max_cost=1.1), free, 3) == {
        "max_total_tokens": 100,
        "max_cost": pytest.approx(0.2),
    }
    assert budget_share(turn(max_total_tokens=400, max_cost=1.1), bounded, 3) == {
        "max_total_tokens": 50,
        "max_cost": 0.01,
    }
    assert budget_share(turn(max_total_tokens=102), free, 3) is None
    assert budget_share(turn(max_cost=0.5), free, 1) is None


def test_the_smaller_limit_of_depth_applies() -> None:
    """That of the run's input, or the one that the agent was declared with."""
    facts = ToolFacts(timeout=0, max_depth=5)
    assert [remaining_depth(turn(max_depth=given), facts) for given in (None, 0, 3, 9)] == [5, 0, 3, 5]


def asks(*prompts: str, name: str = "worker") -> Say:
    return Say(calls=[Call(name, {"prompt": prompt}) for prompt in prompts])


async def test_sub_agents_run_and_their_results_return() -> None:
    """Two at once that run out of steps, and one that completes; each has spans."""
    busy = Script("busy", [lambda messages: Say(calls=[Call("look", {"where": messages[0].text})])])
    run = await run_agent(boss, "Go", model=ScriptedModel(asks("a", "b"), "well"), sub_agents={"worker": busy})
    assert run.output == "well"
    assert [call.run and (call.run.status, call.run.steps) for call in run.calls] == [("max_steps", 2)] * 2
    assert [call.result and call.result.error and call.result.error.kind for call in run.calls] == [
        "tool_exception"
    ] * 2
    assert [span.name for span in run.spans].count("invoke_agent worker") == 2
    assert run.result is not None
    assert run.result.usage.input_tokens > 0
    model = ScriptedModel(Say(calls=[Call("look", {"where": "c"})]), "nothing there")
    run = await run_agent(boss, "Go", model=ScriptedModel(asks("c"), "well"), sub_agents={"worker": model})
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "nothing there"
    assert [message.text for message in model.told[1]] == ["nothing in c"]


async def test_a_sub_agent_may_have_sub_agents() -> None:
    run = await run_agent(
        editor, "?", model=ScriptedModel(*editor_script.turns), scripts=[researcher_script, translator_script]
    )
    assert run.output == (
        "Published 'The herons': grey: 260000 pairs, rising; purple: 60000 pairs, falling; squacco: 20000 pairs, stable"
    )
    assert [span.name for span in run.spans].count("invoke_agent translator") == 1


async def test_a_failure_that_fails_the_run_cancels_the_other_sub_agent() -> None:
    """The error of the sub-agent's run is the source of the run's."""
    looks = Say(calls=[Call("look", {"where": "everywhere"})])
    refusing = Script("refusing", [lambda messages: Say(asks_nothing()) if messages[0].text == "a" else looks])
    run = await run_agent(
        strict, "Go", model=ScriptedModel(asks("a", "b"), is_strict=False), sub_agents={"worker": refusing}
    )
    assert isinstance(run.error, ToolExecutionError)
    assert getattr(run.error.source, "type_name", "") == ModelRequestError.__name__
    assert not isinstance(run.error, ToolTimeoutError)


async def test_a_policy_matches_the_error_of_the_sub_agents_run() -> None:
    """It is matched as a tool's own exception is."""
    refusing = Script("refusing", [lambda _: Say(asks_nothing())])
    for policy, is_told in ((ModelRequestError, True), (ModelUnavailableError, False)):
        by_type = Agent(name="by_type", model="openai:x", tools=boss.tools, handle_errors=policy)
        model = ScriptedModel(asks("a"), "well", is_strict=False)
        run = await run_agent(by_type, "Go", model=model, sub_agents={"worker": refusing})
        assert (run.output, run.error is None) == ("well" if is_told else None, is_told)


def asks_nothing() -> str:
    raise ValueError("no turn")


async def test_calls_of_a_script_share_the_budget_only_with_those_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the script that has its result takes no share any more."""
    shares: list[int] = []

    def noted(*of: Any) -> Any:
        share = budget_share(*of)
        assert share is not None
        shares.append(share["max_total_tokens"])
        return share

    monkeypatch.setattr(sub_agents, "budget_share", noted)
    helper = Agent(name="helper", model="openai:nobody")
    tools = [helper.as_tool(description="Helps.", share_budget=True)]
    lead = Agent(name="lead", model="openai:nobody", tools=tools, features=[CodeMode()])
    code = "import asyncio\nawait helper('a')\nawait helper('b')\nawait asyncio.gather(helper('c'), helper('d'))"
    model = ScriptedModel(Say(calls=[Call("run_code", {"code": code})]), "done")
    scripts = {"helper": Script("helper", [Say("ok")])}  # whose runs take two tokens
    run = await run_agent(lead, "Go.", model=model, sub_agents=scripts, max_total_tokens=10_000)
    assert [call.result and call.result.text for call in run.calls[0].calls] == ["ok"] * 4
    left = shares[0]
    assert shares == [left, left - 2, (left - 4) // 2, (left - 4) // 2]


async def test_a_run_at_the_depth_limit_starts_no_sub_agent() -> None:
    run = await run_agent(boss, "Go", model=ScriptedModel(asks("a"), "well"), max_depth=0)
    [call] = run.calls
    assert call.result is not None
    assert "may not hand work on any deeper" in call.result.text
    assert (call.run, call.attempts) == (None, 0)


_CROWD: list[Tool] = []
crowd = Agent(name="crowd", model="scripted:crowd", tools=_CROWD, max_depth=3, max_sub_runs=20)
_CROWD.append(crowd.as_tool(description="Itself."))
crowd_script = Script(
    "crowd",
    [
        lambda _: asks(*"abcdef", name="crowd"),
        lambda messages: Say(" ".join(message.text for message in messages[2:])),
    ],
)


@pytest.mark.parametrize(("given", "most"), [({}, 20), ({"max_sub_runs": 7}, 7), ({"max_sub_runs": 0}, 0)])
async def test_a_run_and_all_below_it_start_no_more_sub_runs_than_the_limit(given: dict[str, Any], most: int) -> None:
    """Six calls at each of three levels would be 258 runs. Those that are open at once share the limit; the model is told."""
    run = await run_agent(
        crowd, "Go", model=ScriptedModel(*crowd_script.turns), sub_agents={"crowd": crowd_script}, **given
    )
    assert run.result is not None
    started = [span.name for span in run.spans].count("invoke_agent crowd") - 1
    assert 0.5 * most <= started == run.result.sub_runs <= most
    assert "have started as many agents as they may. Do the rest without another agent." in str(run.output)


async def test_runs_that_a_sub_agent_did_not_use_are_left_for_later_steps() -> None:
    asks_often = [asks("a", "b", name="crowd") for _ in range(6)]
    model = ScriptedModel(*asks_often, "well")
    quiet = Script("quiet", [Say("done")])
    often = Agent(name="often", model="openai:x", tools=_CROWD, max_sub_runs=12)
    run = await run_agent(often, "Go", model=model, sub_agents={"crowd": quiet})
    assert [call.run and call.run.status for call in run.calls] == ["completed"] * 12
    assert run.result is not None
    assert run.result.sub_runs == 12


async def test_a_script_for_an_unknown_sub_agent_is_refused() -> None:
    with pytest.raises(
        DeclarationError, match="sub_agents names 'nobody', but the agents of this test are: boss, worker"
    ):
        await run_agent(boss, "Go", model=ScriptedModel("x"), sub_agents={"nobody": ScriptedModel("x")})


async def test_the_example_of_the_sub_agents_page_passes() -> None:
    """docs/sub-agents.md: its test passes."""
    page: dict[str, Any] = {}
    exec(compile(PAGE, "docs/sub-agents.md", "exec", dont_inherit=True), page)
    assert "assert " in PAGE
    await page["test_two_questions_at_once"]()
