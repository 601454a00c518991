"""`@tool(once=…)` without a server: which calls count as equal, who is asked, and what policies say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mulligan import InvalidToolInputError
from mulligan.worker.loading import load
from tests.promise.test_people import pending
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.once_agents import executions
from tests.support.once_runs import books, decide, kinds, started
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

PAY = '{"amount": 5}'


@pytest.fixture(scope="module")
async def bank(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.once_agents"])) as at:
        yield at


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


async def test_a_long_result_is_told_by_its_first_two_kilobytes(bank: MemoryLab, ledger: Path) -> None:
    ran = await bank.run([Turn(calls=[("pay", PAY, "a"), ("pay", PAY, "b")]), DONE], **books(ledger, "long"))
    _, excerpt = ran.calls[1]["result"]["text"].split("begins with:\n")
    assert excerpt == "é" * 1_024


async def test_a_failed_call_may_be_repeated_in_its_step_and_later(bank: MemoryLab, ledger: Path) -> None:
    """Each equal call waits for the one before it."""
    turns = [Turn(calls=[("pay", PAY, f"a{n}") for n in range(4)]), call("pay", PAY, "b"), DONE]
    ran = await bank.run(turns, **books(ledger, "error", "error", "ok"))
    assert kinds(ran) == ["tool_error", "tool_error", None, "duplicate_call", "duplicate_call"]
    done = executions(ledger)
    assert [each["outcome"] for each in done] == ["error", "error", "ok"]
    assert len({each["key"] for each in done}) == 3


POLICIES = {
    "throw": ("pay", {"on_invalid_tool_input": "throw"}),
    "handle_errors=False": ("strict", {}),
}


@pytest.mark.parametrize("case", POLICIES, ids=str)
async def test_a_policy_may_fail_the_run_for_an_excluded_call(bank: MemoryLab, ledger: Path, case: str) -> None:
    name, options = POLICIES[case]
    arguments = PAY if name == "pay" else '{"number": 1}'
    twice = Turn(calls=[(name, arguments, "a"), (name, arguments, "b")])
    ran = await bank.run([twice, DONE], **books(ledger), **options)
    assert isinstance(ran.error, InvalidToolInputError)
    assert (ran.error.kind, ran.error.call_id, ran.error.raw_arguments) == ("duplicate_call", "b", arguments)
    [span] = [each for each in ran.spans_of("ai.toolCall") if each.status == "ERROR"]
    assert (span.attributes["error.type"], span.attributes["mulligan.recovered"]) == ("duplicate_call", False)
    assert len(executions(ledger)) == 1


async def test_a_function_as_policy_gets_the_typed_error(bank: MemoryLab, ledger: Path) -> None:
    twice = Turn(calls=[("told", '{"number": 1}', "a"), ("told", '{"number": 1}', "b")])
    ran = await bank.run([twice, DONE], **books(ledger))
    assert ran.calls[1]["result"]["text"] == 'InvalidToolInputError duplicate_call {"number": 1}'
    ran = await bank.run([twice, DONE], **books(ledger), on_invalid_tool_input="feedback")
    assert ran.calls[1]["result"]["text"].startswith("You made this call of `told` before")


async def test_once_step_compares_calls_of_one_step_only(bank: MemoryLab, ledger: Path) -> None:
    twice = Turn(calls=[("tick", '{"number": 1}', "a"), ("tick", '{"number": 1}', "b")])
    ran = await bank.run([twice, call("tick", '{"number": 1}', "c"), DONE], **books(ledger))
    assert kinds(ran) == [None, "duplicate_call", None]


async def test_a_denial_holds_for_equal_calls_of_the_step_but_not_for_later_ones(bank: MemoryLab, ledger: Path) -> None:
    three = Turn(calls=[("refund", '{"order": 7}', each) for each in "abc"])
    handle = await bank.start([three, call("refund", '{"order": 7}', "d"), DONE], **books(ledger))
    await pending(handle)
    await decide(handle, "a", "deny", reason="no", by="Ada")
    [asked] = await pending(handle)
    assert asked["call_id"] == "d"
    await decide(handle, "d", "approve")
    ran = await bank.look(handle)
    assert kinds(ran) == ["denied", "duplicate_call", "duplicate_call", None]
    assert ran.calls[1]["result"]["text"] == (
        "You made this call of `refund` more than once in one step. The first was not run, because a person denied it, so "
        "this one was not run either."
    )


async def test_an_approved_call_that_fails_is_asked_about_again_for_its_repeat(bank: MemoryLab, ledger: Path) -> None:
    twice = Turn(calls=[("refund", '{"order": 7}', "a"), ("refund", '{"order": 7}', "b")])
    handle = await bank.start([twice, DONE], **books(ledger, "error", "ok"))
    await pending(handle)
    await decide(handle, "a", "approve")
    while [each["call_id"] for each in await pending(handle)] != ["b"]:
        await asyncio.sleep(0.02)
    await decide(handle, "b", "approve")
    assert kinds(await bank.look(handle)) == ["tool_error", None]


async def test_edited_arguments_count_as_those_that_ran_and_the_models_as_well(bank: MemoryLab, ledger: Path) -> None:
    """Also for a call that was waiting for its own approval when another one was edited to be equal."""
    step = Turn(calls=[("refund", '{"order": 7}', "a"), ("refund", '{"order": 8}', "b")])
    later = Turn(
        calls=[("refund", '{"order": 7}', "c"), ("refund", '{"order": 8}', "d"), ("refund", '{"order": 9}', "e")]
    )
    handle = await bank.start([step, later, DONE], **books(ledger))
    await pending(handle, 2)
    await decide(handle, "a", "approve", arguments={"order": 8})
    await started(ledger)
    await decide(handle, "b", "approve")
    [asked] = await pending(handle)
    assert asked["call_id"] == "e"
    # A person who edits a call to what has run already does not make it run again.
    await decide(handle, "e", "approve", arguments={"order": 7})
    ran = await bank.look(handle)
    assert kinds(ran) == [None, *["duplicate_call"] * 4]
    assert [each["arguments"] for each in executions(ledger)] == [{"order": 8}]


async def test_an_approved_call_runs_if_the_equal_one_that_it_waited_for_is_denied(
    bank: MemoryLab, ledger: Path
) -> None:
    """Also if the run continues as new in between: tests/live/test_once.py."""
    step = Turn(calls=[("refund", '{"order": 7}', "a"), ("refund", '{"order": 8}', "b")])
    handle = await bank.start([step, DONE], **books(ledger))
    await pending(handle, 2)
    await decide(handle, "b", "approve", arguments={"order": 7})
    await decide(handle, "a", "deny")
    assert kinds(await bank.look(handle)) == ["denied", None]
    assert [each["arguments"]["order"] for each in executions(ledger)] == [7]


async def test_a_denial_holds_for_the_equal_calls_of_its_step(bank: MemoryLab, ledger: Path) -> None:
    step = Turn(calls=[("ship", f'{{"order": {order}}}', each) for order, each in ((7, "a"), (8, "b"), (7, "c"))])
    handle = await bank.start([step, DONE], **books(ledger))
    await pending(handle, 2)
    await decide(handle, "b", "approve", arguments={"order": 7})
    await decide(handle, "a", "deny")
    await started(ledger)
    await handle.execute_update("complete", {"call_id": "b", "error": "out of stock"})
    assert kinds(await bank.look(handle)) == ["denied", "tool_error", "duplicate_call"]
