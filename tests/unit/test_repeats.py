"""`max_repeats`: a model that makes the same failing call step after step ends the run."""

from __future__ import annotations

import pytest

from mulligan import Agent, Call, DeclarationError, Say, tool
from mulligan.testing import ScriptedModel, run_agent


@tool
def weigh(parcel: int) -> int:
    """Weigh a parcel."""
    return parcel


def weigher(max_repeats: int | None = 5) -> Agent:
    return Agent(name="weigher", model="openai:nobody", tools=[weigh], max_repeats=max_repeats, max_steps=12)


def weighs(arguments: str) -> Say:
    return Say(calls=[Call("weigh", arguments)])


async def test_the_same_failing_call_in_consecutive_steps_ends_the_run() -> None:
    """White space and the order of fields make no difference. Each call still gets its result."""
    spellings = ('{"parcel": "x", "a": 1}', '{"a":1,"parcel":"x"}')
    run = await run_agent(weigher(3), "Go", model=ScriptedModel(*(weighs(spellings[at % 2]) for at in range(3))))
    assert run.result is not None
    assert (run.result.status, run.result.steps, run.result.recovered_failures) == ("max_repeats", 3, 3)
    assert all(call.result is not None for call in run.calls)


async def test_another_call_between_begins_the_count_anew() -> None:
    """And so does a call that succeeds; calls of one step are counted each for itself."""
    wrong, right = weighs("{}"), weighs('{"parcel": 1}')
    run = await run_agent(
        weigher(2), "Go", model=ScriptedModel(wrong, right, wrong, weighs('{"parcel": "y"}'), "Done.")
    )
    assert run.result is not None
    assert (run.result.status, run.result.steps) == ("completed", 5)


@pytest.mark.parametrize(("max_repeats", "status", "steps"), [(5, "max_repeats", 5), (None, "max_steps", 12)])
async def test_the_limit_is_five_unless_it_is_switched_off(max_repeats: int | None, status: str, steps: int) -> None:
    assert Agent(name="any", model="openai:nobody").max_repeats == 5
    run = await run_agent(weigher(max_repeats), "Go", model=ScriptedModel(*[weighs("{}")] * steps))
    assert run.result is not None
    assert (run.result.status, run.result.steps) == (status, steps)


@pytest.mark.parametrize("max_repeats", [0, -1, True, 2.5])
def test_a_limit_that_makes_no_sense_is_refused(max_repeats: int) -> None:
    with pytest.raises(DeclarationError, match=r"max_repeats is .*; it must be a whole number, 1 or more, or None"):
        weigher(max_repeats)
