"""What `DurableAgent.run` refuses, in a workflow that goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio import workflow

from mulligan import Agent, DurableAgent, InvalidRunInputError, Say, Script
from mulligan.testing import ScriptedModel, run_workflow
from mulligan.values import AssistantMessage, ToolCall

own = Agent(name="own", model="scripted:own")
UNANSWERED = [AssistantMessage(role="assistant", text="", tool_calls=[ToolCall(id="c", name="x", arguments="{}")])]
BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "nothing": ((None,), {}, 'no "prompt" and no "messages"'),
    "an empty text": ((" ",), {}, '"prompt" is empty'),
    "an empty list": (([],), {}, 'no "prompt" and no "messages"'),
    "a number": ((5,), {}, '"prompt" is 5'),
    "an object": ((object(),), {}, '"prompt" is "object"'),
    "a key that JSON does not have": (({(1, 2): 3},), {}, '"prompt" is dict'),
    "a message without a role": (([{"text": "x"}],), {}, 'needs a "role"'),
    "a call without a result": ((UNANSWERED,), {}, "has no result"),
    "no steps": (("x",), {"max_steps": 0}, '"max_steps" is 0'),
    "a text as steps": (("x",), {"max_steps": "3"}, '"max_steps" is "3"'),
    "a number as model": (("x",), {"model": 5}, '"model" is 5'),
    "a model without a provider": (("x",), {"model": "nope"}, "it must be one of"),
}


async def refusal(turn: Any) -> str:
    try:
        return str((await turn).output)
    except InvalidRunInputError as error:
        return error.message


@workflow.defn
class Refused:
    @workflow.run
    async def run(self, case: str) -> list[str]:
        agent, (given, options, _) = DurableAgent("own"), BAD[case]
        return [await refusal(agent.run(*given, **options)), await refusal(agent.run("Go on."))]


@workflow.defn
class AtOnce:
    @workflow.run
    async def run(self) -> list[str]:
        agent, other = DurableAgent("own"), DurableAgent("own")
        said = await asyncio.gather(*(refusal(each.run("Go.")) for each in (agent, agent, other)))
        return [*said, await refusal(agent.run("Go on."))]


@workflow.defn
class AsOneEnds:
    @workflow.run
    async def run(self) -> list[str]:
        agent = DurableAgent("own")
        first = asyncio.create_task(agent.run("Go."))
        await workflow.wait_condition(lambda: agent.status == "completed")
        refused = await refusal(agent.run("At once."))
        return [refused, str((await first).output), await refusal(agent.run("Go on."))]


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_argument_is_refused_with_a_sentence(case: str) -> None:
    """The next turn works."""
    refused, said = await run_workflow(Refused, case, agents=[own], models=[ScriptedModel("fine", name="own")])
    assert BAD[case][2] in refused
    assert (said, "\n" in refused, " object at 0x" in refused) == ("fine", False, False)


async def test_a_second_turn_at_once_is_refused() -> None:
    """The first one goes on, and so does another conversation."""
    model = Script("own", [Say("fine"), Say("again")])
    first, second, other, again = await run_workflow(AtOnce, agents=[own], models=[model])
    assert (first, other, again) == ("fine", "fine", "again")
    assert "a conversation has one turn at a time" in second


async def test_a_turn_that_is_being_closed_is_still_open() -> None:
    model = Script("own", [Say("fine"), Say("again")])
    refused, *said = await run_workflow(AsOneEnds, agents=[own], models=[model])
    assert "a conversation has one turn at a time" in refused
    assert said == ["fine", "again"]
