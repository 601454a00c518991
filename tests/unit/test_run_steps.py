"""The steps of a run: what is counted, in which order calls start and results stand, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import workflow

from mulligan import (
    Agent,
    Call,
    Decide,
    DurableAgent,
    InvalidToolInput,
    ModelRequestError,
    Pending,
    Say,
    Script,
    ToolError,
    ToolExecutionError,
    ToolStrategy,
    tool,
)
from mulligan.testing import AgentRun, ScriptedModel, run_agent, run_workflow
from mulligan.wire.updates import SendMessage, Stop
from mulligan.workflows import limits

MODEL = "openai:nobody"
RAN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool
def look(n: int = 0) -> str:
    """Look."""
    RAN.append(n)
    return f"saw {n}"


@tool
def write(size: int) -> str:
    """Write."""
    return "x" * size


@tool(local=True)
def note(size: int) -> str:
    """Write at once."""
    return "x" * size


@tool
def refuse() -> str:
    """Refuse."""
    raise ToolError("No.")


@tool(handle_errors=False)
def strict() -> str:
    """Fail the run."""
    raise ValueError("no way")


@tool(needs_approval=True)
def pay(n: int) -> str:
    """Pay."""
    RAN.append(f"paid {n}")
    return f"paid {n}"


def numbered(invalid: InvalidToolInput) -> Any:
    return {"n": 7}


@tool(fix=numbered)
def fixed(n: int) -> str:
    """Look."""
    return f"saw {n}"


clerk = Agent(name="clerk", model=MODEL, tools=[look, write, note, refuse, strict, pay, fixed], max_steps=9)


def says(*calls: Call, text: str = "") -> Say:
    return Say(text, calls=calls)


def looks(*numbers: int) -> list[Call]:
    return [Call("look", {"n": each}) for each in numbers]


def texts(run: AgentRun[Any]) -> list[str]:
    return [call.result.text if call.result else "" for call in run.calls]


async def run(*turns: Any, agent: Agent[Any] = clerk, **given: Any) -> AgentRun[Any]:
    return await run_agent(agent, "Go.", model=ScriptedModel(*turns, is_strict=False), **given)


async def test_the_result_of_a_run_counts_its_calls_failures_and_repairs() -> None:
    """A call that fails counts as one that the model has recovered from; one that succeeds does not."""
    ran = await run(
        says(*looks(1, 2), Call("refuse")), says(Call("fixed", {"m": 1}), Call("look", {"n": "3"})), "Done."
    )
    assert ran.result is not None
    counted = (ran.result.steps, ran.result.tool_calls, ran.result.recovered_failures, ran.result.repairs)
    assert counted == (3, 5, 1, 2)
    assert texts(ran) == ["saw 1", "saw 2", "No.", "saw 7", "saw 3"]
    assert [call.attempts for call in ran.calls] == [1] * 5


async def test_results_stand_in_the_order_of_the_calls() -> None:
    """Whichever is there first: the last one has its result at once, and the first one waits for a person."""
    ran = await run(says(Call("pay", {"n": 1}), *looks(2), Call("nothing")), "Done.", person=approves)
    assert RAN == [2, "paid 1"]
    assert [message.text[:6] for message in ran.messages if message.role == "tool"] == ["paid 1", "saw 2", "There "]


def approves(wait: Pending) -> Decide:
    return Decide(call_id=wait.call_id, decision="approve", by="Ada")


@pytest.mark.parametrize(
    ("sizes", "most", "cut"),
    [
        ([900, 900], 2_000, [False, False]),
        ([1_100, 900], 2_000, [True, False]),
        ([1_100], 2_000, [False]),
    ],
)
async def test_a_result_beyond_its_share_of_the_step_is_cut(
    sizes: list[int], most: int, cut: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local calls share less."""
    monkeypatch.setattr(limits, "STEP_RESULTS_BYTES", most)
    monkeypatch.setattr(limits, "STEP_LOCAL_RESULTS_BYTES", most // 2)
    ran = await run(says(*(Call("write", {"size": each}) for each in sizes)), "Done.")
    assert ["left out" in each for each in texts(ran)] == cut
    ran = await run(says(*(Call("note", {"size": each // 2}) for each in sizes)), "Done.")
    assert ["left out" in each for each in texts(ran)] == cut


async def test_calls_with_much_metadata_start_a_few_at_a_time_and_people_are_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_BYTES", 2 * (limits.COMMAND_BYTES + 100))
    calls = [*looks(1, 2), Call("pay", {"n": 3}), *looks(4)]
    seen: list[Any] = []

    def person(wait: Pending) -> Decide:
        seen.extend(RAN)
        return approves(wait)

    ran = await run(says(*calls), "Done.", person=person, metadata={"k": "x" * 99})
    started = [event.call_id for event in ran.events if event.type == "tool_call_started"]
    waiting = [event.type for event in ran.events if event.type in ("waiting", "tool_call_started")]
    assert waiting[0] == "waiting"
    assert [call.id for call in ran.calls] == sorted(started, key=[call.id for call in ran.calls].index)
    assert sorted(map(str, seen)) == ["1", "2", "4"]  # what waits for a person holds nothing up
    assert texts(ran) == ["saw 1", "saw 2", "paid 3", "saw 4"]


async def test_a_failure_that_fails_the_run_says_what_the_turn_has_used() -> None:
    """The failed call has its result, as the next turn reads it; and so has each other call."""
    ran = await run(says(*looks(1)), says(Call("strict"), Call("pay", {"n": 2})))
    assert isinstance(ran.error, ToolExecutionError)
    assert ran.error.consumption is not None
    assert (ran.error.consumption.steps, ran.error.raw_arguments) == (2, "{}")
    assert [bool(call.result) for call in ran.calls] == [True] * 3
    assert "no way" in texts(ran)[1]
    assert "nobody had decided on it when the run ended" in texts(ran)[2]
    [ended] = [event for event in ran.events if event.type == "run_ended"]
    assert (ended.status, ended.error and ended.error.kind) == ("failed", "tool_exception")


async def test_a_model_that_refuses_fails_the_run() -> None:
    def refuses(_: Any) -> Say:
        raise ModelRequestError("no")

    agent = Agent(name="clerk", model=MODEL, tools=[look])
    with pytest.raises(ModelRequestError, match="no"):
        await run(says(*looks(1)), refuses, agent=agent)


@pytest.mark.parametrize(
    ("limits_of_run", "status", "steps", "output"),
    [
        ({"max_steps": 2}, "max_steps", 2, "So far."),
        ({"max_total_tokens": 1}, "max_tokens", 1, "So far."),
        ({}, "completed", 4, "Done."),
    ],
)
async def test_a_limit_ends_the_run_after_the_results_of_its_step(
    limits_of_run: dict[str, Any], status: str, steps: int, output: str
) -> None:
    """What the model has said is the output then."""
    turns = [says(*looks(n), text="So far.") for n in range(3)]
    ran = await run(*turns, "Done.", **limits_of_run)
    assert ran.result is not None
    assert (ran.result.status, ran.result.steps, ran.result.output) == (status, steps, output)
    assert all(call.result for call in ran.calls)


async def test_a_final_answer_at_the_limit_completes_the_run() -> None:
    ran = await run(says(*looks(1)), "Done.", max_steps=2)
    assert ran.result is not None
    assert (ran.result.status, ran.result.output) == ("completed", "Done.")


async def test_an_answer_that_was_cut_off_ends_the_run_with_what_it_says() -> None:
    ran = await run(Say("Half", finish_reason="length"))
    assert ran.result is not None
    assert (ran.result.status, ran.result.output) == ("truncated", "Half")
    ran = await run(Say("No.", finish_reason="refusal"))
    assert ran.result is not None
    assert ran.result.status == "refused"


class Sum(BaseModel):
    total: int


async def test_a_run_without_the_output_it_must_have_goes_on_to_its_limit() -> None:
    agent = Agent(name="sums", model=MODEL, tools=[look], output=ToolStrategy(Sum), max_steps=2)
    ran = await run("Three.", "Three!", agent=agent)
    assert ran.result is not None
    assert (ran.result.status, ran.result.output, ran.result.recovered_failures) == ("max_steps", None, 2)


own = Agent(name="own", model="scripted:own", tools=[look], max_steps=3)


@workflow.defn
class ToldMeanwhile:
    """A run to which somebody writes, or which somebody stops, while the model answers for the nth time."""

    @workflow.run
    async def run(self, step: int, what: str, max_steps: int) -> list[Any]:
        agent = DurableAgent("own")
        inner = agent._agent
        turn = asyncio.create_task(agent.run("Go.", max_steps=max_steps))
        await workflow.wait_condition(lambda: inner.is_answering and inner.conversation.next_step == step)
        if what in ("write", "both"):
            inner.inbox.add_message(SendMessage(text="And this?"), "1")
        if what in ("stop", "both"):
            inner.inbox.request_stop(Stop(reason="late", by="Ada"))
        result = await turn
        asked = [message.text for message in inner.conversation.messages if message.role == "user"]
        return [result.status, result.steps, result.reason, asked, inner.inbox.stop is None]


SCRIPT = Script("own", [Say("First.", calls=looks(1)), Say("Second."), Say("Third.")])


@pytest.mark.parametrize(
    ("step", "what", "most", "expected"),
    [
        (1, "write", 9, ["completed", 2, None, ["Go.", "And this?"], True]),
        (2, "write", 9, ["completed", 3, None, ["Go.", "And this?"], True]),  # the final answer was written before it
        (2, "write", 2, ["completed", 2, None, ["Go.", "And this?"], True]),  # no step is left
        (1, "stop", 9, ["stopped", 1, "late", ["Go."], True]),
        (2, "stop", 9, ["completed", 2, None, ["Go."], True]),
        (2, "both", 9, ["completed", 2, None, ["Go.", "And this?"], True]),
        (1, "both", 9, ["stopped", 1, "late", ["Go.", "And this?"], True]),
    ],
)
async def test_what_people_send_while_the_model_answers(step: int, what: str, most: int, expected: list[Any]) -> None:
    """A message is answered if a step is left; a request to stop starts nothing new. The conversation has the message."""
    assert await run_workflow(ToldMeanwhile, step, what, most, agents=[own], models=[SCRIPT]) == expected


@workflow.defn
class SeveralTurns:
    @workflow.run
    async def run(self) -> list[Any]:
        agent = DurableAgent("own")
        first = await agent.run("Go.", max_steps=1)
        second = await agent.run("Go on.")
        inner = agent._agent
        return [
            [first.status, first.steps, second.status, second.steps],
            [each.usage.total_tokens for each in inner.used] == [first.usage.total_tokens, second.usage.total_tokens],
            [inner.turn_of(step).number for step in (1, 2)],
            [inner.turn.number, inner.turn.first_step, inner.status, inner.is_turn_open],
        ]


async def test_a_turn_has_its_own_steps_and_limits() -> None:
    """Steps are numbered over all turns."""
    assert await run_workflow(SeveralTurns, agents=[own], models=[SCRIPT]) == [
        ["max_steps", 1, "completed", 1], True, [1, 2], [2, 2, "completed", False],
    ]  # fmt: skip


async def test_a_run_whose_history_is_nearly_full_ends_before_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has."""
    full = iter([False, True])
    monkeypatch.setattr(limits, "is_history_nearly_full", lambda: next(full))
    ran = await run(says(*looks(1), text="So far."), "Done.")
    assert ran.result is not None
    assert (ran.result.status, ran.result.steps, ran.result.output) == ("max_history", 1, "So far.")
