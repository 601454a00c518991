"""`Guardrails` without a server: who refuses what, and what the run says then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import DeclarationError, Guardrails, StructuredOutputValidationError
from mulligan.worker.loading import load
from tests.support.guardrail_agents import CHECKED, MODEL, Query, teacher
from tests.support.lab import call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn


@pytest.fixture(scope="module")
async def school(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.guardrail_agents"])) as at:
        yield at


def query(sql: str, id: str) -> Turn:  # noqa: A002
    return call("Query", json.dumps({"sql": sql}), id)


async def test_an_input_is_checked_once_and_an_answer_at_its_end(school: MemoryLab) -> None:
    turns = [call("add", '{"a": 1, "b": 2}', "a1"), Turn("It is 3.")]
    ran = await school.run(turns, agent="teacher", prompt="1 + 2?")
    assert (ran.result["status"], ran.result["output"]) == ("completed", "It is 3.")
    assert CHECKED[ran.id] == [("input", ["1 + 2?"], None, "no_homework_1"), ("output", "It is 3.")]


async def test_an_output_guardrail_ends_the_turn_without_an_output(school: MemoryLab) -> None:
    both = Turn("I call 555.", calls=[("add", '{"a": 1, "b": 2}', "a1")])
    ran = await school.run([both, Turn("Call 555 1234.")], agent="teacher", prompt="Whom do I call?")
    assert (ran.result["status"], ran.result["output"]) == ("refused", None)
    assert ran.result["reason"] == "The output guardrail `no_phone_numbers` refused it: it has a phone number"


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("broken", "failed: ValueError: no school today"),
        ("slow", "did not answer: it did not answer within 2 s."),
    ],
)
async def test_a_guardrail_that_fails_or_hangs_refuses(school: MemoryLab, prompt: str, why: str) -> None:
    ran = await school.run([Turn("never")], agent="teacher", prompt=prompt)
    assert ran.result["status"] == "refused"
    assert ran.result["reason"].startswith("The input guardrail `no_homework` " + why[:16])
    assert ran.requests == []


async def test_a_text_that_a_validator_refuses_is_answered_by_a_user_message(school: MemoryLab) -> None:
    ran = await school.run([Turn("hm"), Turn("Hello.")], agent="shouter")
    assert (ran.result["output"], ran.result["recovered_failures"]) == ("HELLO.", 1)
    assert len(ran.rejected) == 1
    assert "Say more." in ran.rejected[0]


async def test_after_its_retries_the_run_fails_with_the_validators_text(school: MemoryLab) -> None:
    turns = [Turn('{"sql": "DROP a"}'), Turn('{"sql": "DROP b"}'), Turn('{"sql": "DROP c"}')]
    ran = await school.run(turns, agent="writer", api="openai")
    assert isinstance(ran.error, StructuredOutputValidationError)
    assert "`only_select` does not accept" in ran.error.message
    assert len(ran.requests) == 2


async def test_a_validator_with_a_bug_fails_the_run_with_a_sentence_that_quotes_nothing(school: MemoryLab) -> None:
    ran = await school.run([query("BUG", "q1")], agent="analyst")
    assert isinstance(ran.error, StructuredOutputValidationError)
    assert ran.error.message == "The validator `only_select` failed with KeyError."


def test_wrong_declarations_are_refused() -> None:
    def declare(**options: Any) -> str:
        with pytest.raises(DeclarationError) as refused:
            type(teacher)(name="x", model=MODEL, output=Query, features=[Guardrails(**options)])
        return str(refused.value)

    assert "give it a function" in declare()
    assert "input must be a list of functions" in declare(input=["x"])
    assert "retries is -1" in declare(validators=[print], retries=-1)
    assert "timeout must be more than 0" in declare(validators=[print], timeout=900)
