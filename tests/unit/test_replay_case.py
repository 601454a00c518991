"""Replays of cases without a server: which answers the model gives, which results calls get, and how runs end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Call, Compaction, Say, ask_model, tool
from mulligan.testing import AgentRun, Case, ScriptedModel, replay, run_agent
from mulligan.wire.case import CaseError, CaseSettings, parse_case
from mulligan.wire.start_input import StartInput

ROLLS: list[int] = []


@tool
def roll() -> int:
    """Roll a die that never shows a number twice."""
    ROLLS.append(len(ROLLS))
    return ROLLS[-1]


@tool(fix=ask_model("scripted:repairer"))
def weigh(grams: int) -> str:
    """Weigh."""
    return f"{grams} g"


async def case_of(agent: Agent, *turns: Say | str, scripts: Any = (), **given: Any) -> Case:
    """The case of a run of an agent with a scripted model."""
    model = ScriptedModel(*turns, is_strict=False)
    run = await run_agent(agent, "Go.", model=model, scripts=scripts, **given)
    return case_from(run, agent.name, **given)


def case_from(run: AgentRun, agent: str, **given: Any) -> Case:
    """The case of a run of the agent with that name."""
    assert run.result is not None
    case = Case(
        version=1,
        id="original",
        run_id="1",
        agent=agent,
        input=StartInput(agent=agent, prompt="Go.", **given),
        instructions=run.instructions,
        tools=run.tools,
        output=run.result.model_dump(mode="json")["output"],
        status=run.result.status,
        settings=CaseSettings(model="scripted:test", max_steps=9),
        messages=run.messages,
        steps=run.steps,
    )
    return parse_case(case.model_dump_json().encode(), "case.json")


async def test_the_nth_of_equal_calls_gets_the_nth_result() -> None:
    """In the order of the calls, over steps; and no tool runs."""
    roller = Agent(name="roller", model="openai:none", tools=[roll])
    case = await case_of(roller, Say(calls=[Call("roll")]), Say(calls=[Call("roll"), Call("roll")]), "done")
    rolled = len(ROLLS)
    run = await replay(case, roller)
    assert [call.result.text for call in run.calls if call.result] == ["0", "1", "2"]
    assert ([call.recorded for call in run.calls], len(ROLLS)) == ([True] * 3, rolled)


async def test_a_second_model_repairs_as_it_did_then() -> None:
    """It is not called, and where it gave up, it gives up again."""
    scale = Agent(name="scale", model="openai:none", tools=[weigh])
    repairer = ScriptedModel('{"grams": 5}', name="repairer")
    case = await case_of(scale, Say(calls=[Call("weigh", '{"grams": "five"}')]), "done", scripts=[repairer])
    assert [repair.by for repair in case.steps[0].tool_calls[0].repairs] == ["fix"]
    run = await replay(case, scale)
    assert (run.calls[0].arguments, run.calls[0].repairs) == ({"grams": 5}, case.steps[0].tool_calls[0].repairs)
    gives_up = ScriptedModel("null", name="repairer")
    case = await case_of(scale, Say(calls=[Call("weigh", '{"grams": "five"}')]), "done", scripts=[gives_up])
    await replay(case, scale)


async def test_a_case_is_run_by_the_agent_as_it_is_now() -> None:
    """Its version was that of the run, and evaluations are of the file as it is now."""
    case = await case_of(Agent(name="plain", model="openai:none"), "done")
    case.input = case.input.model_copy(update={"version": "0123456789abcdef"})
    assert case.run_input().version is None
    assert case.run_input(version="current").version == "current"


@pytest.mark.parametrize(("turn", "status"), [("length", "truncated"), ("refusal", "refused"), ("stop", "completed")])
async def test_a_run_ends_as_it_did(turn: Any, status: str) -> None:
    plain = Agent(name="plain", model="openai:none")
    case = await case_of(plain, Say("It is", finish_reason=turn))
    assert case.status == status
    run = await replay(case, plain)
    assert run.result is not None
    assert run.result.status == status


async def test_limits_count_what_the_model_used_then() -> None:
    """The tokens are those of the case, so that a limit ends the replay where it ended the run."""
    roller = Agent(name="roller", model="openai:none", tools=[roll], max_total_tokens=20)
    case = await case_of(roller, *[Say(calls=[Call("roll")])] * 9)
    assert (case.status, len(case.steps) < 9) == ("max_tokens", True)
    await replay(case, roller)
    with pytest.raises(
        AssertionError, match=r"^The model would be called after step \d, with which the case ends \(max_t"
    ):
        await replay(case, replace(roller, max_total_tokens=10_000))


async def test_a_run_that_was_compacted_is_compacted_again_with_its_summaries() -> None:
    """Also the ids of calls, which get a suffix after a compaction, are the same."""
    reader = Agent(name="reader", model="openai:none", tools=[read], features=[Compaction(at=2_000)], max_steps=20)
    case = await case_of(reader, *[Say(calls=[Call("read", {"page": page})]) for page in range(12)], "done")
    summaries = [each.compaction and each.compaction.text for each in case.steps]
    assert len([each for each in summaries if each]) > 1
    run = await replay(case, reader)
    assert [each.compaction and each.compaction.text for each in run.steps] == summaries
    assert run.messages == case.messages
    for features, sentence in (([Compaction(at=1_500)], "is compacted before"), ([], "is not compacted before")):
        with pytest.raises(AssertionError, match=rf"^The conversation {sentence} step \d\.$"):
            await replay(case, replace(reader, features=features))


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"PAGE {page}: " + f"line of page {page}. " * 80


async def test_a_case_of_an_agent_that_is_a_file_is_replayed(tmp_path: Path) -> None:
    """By its path, with the modules that its file needs; another sentence in the file is a difference."""
    path = tmp_path / "support.md"
    path.write_text("---\nmodel: openai:nobody\ntools: [look_up]\n---\nYou help.")
    parts = ["tests.support.agent_file_parts"]
    asks = Say(calls=[Call("look_up", {"order": 7})])
    run = await run_agent(path, "Go.", model=ScriptedModel(asks, "Done."), load=parts)
    case = case_from(run, "support")
    assert (await replay(case, path, load=parts)).output == "Done."
    path.write_text(path.read_text() + " Be brief.")
    with pytest.raises(AssertionError, match=r"\+You help\. Be brief\."):
        await replay(case, path, load=parts)


async def test_a_case_of_a_later_version_may_have_more_fields_anywhere() -> None:
    roller = Agent(name="roller", model="openai:none", tools=[roll])
    case = await case_of(roller, Say(calls=[Call("roll")]), "done", tenant="acme")
    later = _with_new_fields(json.loads(case.model_dump_json()))
    assert later["input"]["of_a_later_version"] == later["steps"][0]["of_a_later_version"] == [1]
    read = parse_case(json.dumps(later).encode(), "case.json")
    assert (read.input, read.steps, read.messages) == (case.input, case.steps, case.messages)
    with pytest.raises(CaseError, match=r"case\.json is not a case: 'input\.of_a_later_version'"):
        parse_case(json.dumps(later).encode(), "case.json", starts_run=True)


def _with_new_fields(value: Any) -> Any:
    """The JSON value with one more field in each object that Mulligan defines."""
    if isinstance(value, list):
        return [_with_new_fields(each) for each in value]
    if not isinstance(value, dict):
        return value
    free = {"arguments", "metadata", "tools"}  # what models, tools and users define
    fields = {key: each if key in free else _with_new_fields(each) for key, each in value.items()}
    return {**fields, "of_a_later_version": [1]}
