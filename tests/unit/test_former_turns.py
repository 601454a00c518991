"""The former turns of an agent: what continue-as-new carries of them is small, and what comes back is what was there."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from mulligan.values import RunResult, Usage
from mulligan.wire.agent_facts import AgentFacts, Definition, ToolDefinition, ToolFacts
from mulligan.wire.start_input import StartInput
from mulligan.workflows.former_turns import FormerTurns
from mulligan.workflows.turn import Turn

STEPS_OF_TURN = 2
TOOLS = [f"tool_{number}" for number in range(100)]


def facts(instructions: str, **fields: Any) -> AgentFacts:
    tools = [ToolDefinition(name=name, description="Looks. " * 40, parameters={"type": "object"}) for name in TOOLS]
    given: dict[str, Any] = {
        "model": "scripted:a",
        "max_steps": 20,
        "max_sub_runs": 10,
        "model_timeout": 60,
        "model_patience": 60,
        "tools": {name: ToolFacts(timeout=60) for name in TOOLS},
        "definition": Definition(instructions=instructions, tools=tools),
        "digest": f"digest of {instructions}",
    }
    return AgentFacts.model_validate({**given, **fields})


def turn(number: int, of: AgentFacts) -> Turn:
    return Turn(
        number=number,
        input=StartInput(agent="a", metadata={"number": str(number)}),
        facts=of,
        trace=f"00-{number:032x}-{number:016x}-01",
        result=RunResult(
            status="completed", output="An answer. " * 100, steps=STEPS_OF_TURN, usage=Usage(input_tokens=10), cost=0.5
        ),
        first_step=(number - 1) * STEPS_OF_TURN + 1,
    )


def turns_of(all_facts: list[AgentFacts]) -> tuple[FormerTurns, list[Turn]]:
    turns = [turn(number, of) for number, of in enumerate(all_facts, 1)]
    former = FormerTurns()
    for before, newest in pairwise(turns):
        former.add(before, newest)
    return former, turns


def carried(former: FormerTurns, newest: Turn, first_step: int = 0) -> tuple[FormerTurns, int]:
    """The former turns of the next workflow run, and the bytes of what was carried."""
    state = json.dumps(former.dump(newest, first_step))
    loaded = FormerTurns()
    loaded.load(json.loads(state), Turn.model_validate_json(newest.model_dump_json()))
    return loaded, len(state)


@pytest.mark.parametrize(
    "each",
    [
        lambda number: facts("The same."),
        lambda number: facts(f"Today is day {number}."),
        lambda number: facts("Limits.", max_total_tokens=number if number % 2 else None, structured=number % 3 == 0),
        lambda number: facts("Tools.", tools={f"tool_{number}": ToolFacts(timeout=number)}),
        lambda number: facts("Output.", definition=Definition(instructions=str(number), tools=[])),
    ],
    ids=["equal", "other instructions", "other limits", "other tools", "another definition"],
)
def test_what_comes_back_is_what_was_there_but_for_outputs(each: Any) -> None:
    former, turns = turns_of([each(number) for number in range(1, 8)])
    loaded, _ = carried(former, turns[-1])
    expected = [each.model_copy(update={"result": each.result.model_copy(update={"output": None})}) for each in turns]
    assert loaded.turns == expected[:-1]
    again, _ = carried(loaded, turns[-1])
    assert again.turns == expected[:-1]


def test_a_hundred_turns_of_a_changed_agent_carry_its_tools_once() -> None:
    """A function writes the instructions of each turn, or the agent was changed by a deploy after half of them."""
    equal, turns = turns_of([facts("The same.") for _ in range(101)])
    most = carried(equal, turns[-1])[1] + len(facts("Day 1.").model_dump_json())
    daily, turns = turns_of([facts(f"Day {number}.") for number in range(101)])
    _, size = carried(daily, turns[-1])
    assert size < most
    first = daily.turns[0].facts
    assert all(each.facts.definition.tools is first.definition.tools for each in daily.turns)
    changed, turns = turns_of(
        [facts("Before.", max_steps=5) if number < 50 else facts("After.") for number in range(101)]
    )
    _, size = carried(changed, turns[-1])
    assert size < most


def test_turns_that_were_handed_over_carry_the_facts_of_each_agent_once() -> None:
    def handed(number: int) -> Turn:
        of = turn(number, facts(f"I sort on day {number}."))
        of.hand_over("b", facts("I refund."))
        return of

    former, newest = FormerTurns(), handed(1)
    for number in range(2, 100):
        before, newest = newest, handed(number)
        former.add(before, newest)
    loaded, size = carried(former, newest)
    assert loaded.turns == former.turns
    assert [sorted(each.pinned) for each in loaded.turns] == [["a"]] * 98
    assert size < 98 * 1_000
    plain, turns = turns_of([facts("I sort.") for _ in range(99)])
    assert size - carried(plain, turns[-1])[1] < 98 * 400


@pytest.mark.parametrize(("first_step", "kept"), [(0, 9), (1, 9), (2, 8), (3, 8), (17, 1), (18, 0), (20, 0)])
def test_turns_whose_steps_another_run_holds_are_summed_up(first_step: int, kept: int) -> None:
    former, turns = turns_of([facts("The same.") for _ in range(10)])
    loaded, _ = carried(former, turns[-1], first_step)
    assert [each.number for each in loaded.turns] == [each.number for each in turns[9 - kept : 9]]
    assert sum(each.usage.input_tokens for each in loaded.used) == 90
    assert sum(each.cost or 0 for each in loaded.used) == pytest.approx(4.5)


def test_an_agent_in_its_first_turn_carries_nothing() -> None:
    former, [newest] = turns_of([facts("The same.")])
    assert former.dump(newest, 0) is None
    assert former.used == []
