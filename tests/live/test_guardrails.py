"""`Guardrails`: what a run begins with and ends with is checked by functions, which may refuse it or want another answer."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mulligan import Agent, DeclarationError, Guardrails, StructuredOutputValidationError, fork_run
from mulligan.trace_view.history import chain
from mulligan.trace_view.history_spans import spans_of
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import Lab, call
from tests.support.guardrail_agents import CHECKED, MODEL, Query, teacher
from tests.support.openai_turn import Turn


@pytest.fixture(scope="module")
async def school(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"school-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load(["tests.support.guardrail_agents"]), lab.telemetry, at.task_queue):
        yield at


def query(sql: str, id: str) -> Turn:  # noqa: A002
    return call("Query", json.dumps({"sql": sql}), id)


async def test_an_input_guardrail_ends_the_turn_before_a_model_is_called(school: Lab) -> None:
    ran = await school.run([Turn("never")], agent="teacher", prompt="Solve 2x = 4", metadata={"class": "4b"})
    assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("refused", None, 0)
    assert ran.result["reason"] == "The input guardrail `no_homework` refused it: this is homework"
    assert ran.requests == []
    assert CHECKED[ran.id] == [("input", ["Solve 2x = 4"], "4b", "no_homework_1")]


async def test_an_input_is_checked_once_and_an_answer_at_its_end(school: Lab) -> None:
    turns = [call("add", '{"a": 1, "b": 2}', "a1"), Turn("It is 3.")]
    ran = await school.run(turns, agent="teacher", prompt="1 + 2?")
    assert (ran.result["status"], ran.result["output"]) == ("completed", "It is 3.")
    assert CHECKED[ran.id] == [("input", ["1 + 2?"], None, "no_homework_1"), ("output", "It is 3.")]


@pytest.mark.parametrize(
    ("edits", "checked", "status"),
    [
        ({"message": "Solve 2x = 4"}, [["1 + 2?", "", "3", "Solve 2x = 4"]], "refused"),
        ({"prompt": "Solve 2x = 4"}, [["Solve 2x = 4"]], "refused"),
        ({"prompt": "Solve 2x = 4", "message": "Go on."}, [["Solve 2x = 4"]], "refused"),
        ({"prompt": "2 + 1?", "message": "2x"}, [["2 + 1?"], ["2 + 1?", "", "3", "2x"]], "refused"),
        ({"prompt": "2 + 1?"}, [["2 + 1?"]], "completed"),
        ({"message": "Go on."}, [["1 + 2?", "", "3", "Go on."]], "completed"),
        ({"results": {"a1": 7}}, [], "completed"),
    ],
)
async def test_what_a_fork_puts_in_is_checked_before_its_first_model_call(
    school: Lab, edits: dict[str, Any], checked: list[list[str]], status: str
) -> None:
    adding = [call("add", '{"a": 1, "b": 2}', "a1"), call("add", '{"a": 3, "b": 2}', "a2"), Turn("It is 5.")]
    ran = await school.run(adding, agent="teacher", prompt="1 + 2?")
    forked = await school.look(await fork_run(school.client, ran.id, at=2, edits=edits, tools="live"))
    assert (forked.result["status"], forked.result["steps"]) == (status, 1 if status == "refused" else 3)
    assert [each[1] for each in CHECKED[forked.id] if each[0] == "input"] == checked
    assert len(school.model.requests_of(ran.id)) == (3 if status == "refused" else 5)


async def test_an_output_guardrail_ends_the_turn_without_an_output(school: Lab) -> None:
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
async def test_a_guardrail_that_fails_or_hangs_refuses(school: Lab, prompt: str, why: str) -> None:
    ran = await school.run([Turn("never")], agent="teacher", prompt=prompt)
    assert ran.result["status"] == "refused"
    assert ran.result["reason"].startswith("The input guardrail `no_homework` " + why[:16])
    assert ran.requests == []


async def test_a_validator_wants_another_answer_and_the_call_has_that_as_its_one_result(school: Lab) -> None:
    ran = await school.run([query("DROP x", "q1"), query("SELECT  1\n", "q2")], agent="analyst")
    assert ran.result["output"] == {"sql": "SELECT 1"}
    assert ran.result["output_type"] == "Query"
    first, second = ran.calls
    assert first["result"]["error"]["kind"] == "invalid_output"
    assert "The validator `only_select` does not accept the answer." in first["result"]["text"]
    assert "Only SELECT is allowed." in first["result"]["text"]
    assert second["result"].get("error") is None
    sent = [each for each in ran.requests[1].conversation if each["role"] == "tool"]
    assert [(each["tool_call_id"], each["content"]) for each in sent] == [("q1", first["result"]["text"])]
    assert ran.result["recovered_failures"] == 1
    failed = [span for span in ran.spans_of("ai.toolCall") if span.attributes.get("mulligan.recovered")]
    assert len(failed) == 1
    history = spans_of(await chain(school.client, ran.id))
    assert [each.name for each in history if each.attributes.get("mulligan.recovered")] == [failed[0].name]


async def test_a_text_that_a_validator_refuses_is_answered_by_a_user_message(school: Lab) -> None:
    ran = await school.run([Turn("hm"), Turn("Hello.")], agent="shouter")
    assert (ran.result["output"], ran.result["recovered_failures"]) == ("HELLO.", 1)
    assert len(ran.rejected) == 1
    assert "Say more." in ran.rejected[0]


async def test_after_its_retries_the_run_fails_with_the_validators_text(school: Lab) -> None:
    turns = [Turn('{"sql": "DROP a"}'), Turn('{"sql": "DROP b"}'), Turn('{"sql": "DROP c"}')]
    ran = await school.run(turns, agent="writer", api="openai")
    assert isinstance(ran.error, StructuredOutputValidationError)
    assert "`only_select` does not accept" in ran.error.message
    assert len(ran.requests) == 2


async def test_a_validator_with_a_bug_fails_the_run_with_a_sentence_that_quotes_nothing(school: Lab) -> None:
    ran = await school.run([query("BUG", "q1")], agent="analyst")
    assert isinstance(ran.error, StructuredOutputValidationError)
    assert ran.error.message == "The validator `only_select` failed with KeyError."


@pytest.mark.parametrize("what", ["input", "output", "validators"])
@pytest.mark.parametrize("has_others", [False, True])
async def test_a_worker_without_the_guardrails_of_a_run_lets_nothing_pass(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    what: str,
    has_others: bool,
) -> None:
    """It declines the check, and a worker that has them decides."""
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0.5")
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"guarded-{uuid.uuid4().hex[:6]}")
    release, began = tmp_path / "release", asyncio.Event()

    async def held(_: Any, ctx: Any) -> str:
        del ctx
        began.set()
        while not release.exists():
            await asyncio.sleep(0.02)
        if what == "validators":
            raise KeyError("not today")
        return "not today"

    @asynccontextmanager
    async def worker(features: Any) -> AsyncIterator[None]:
        module = ModuleType("guarded_module")
        vars(module)["guarded"] = Agent(name="guarded", model=MODEL, features=features)
        monkeypatch.setitem(sys.modules, "guarded_module", module)
        async with running_worker(at.client, load(["guarded_module"]), at.telemetry, at.task_queue):
            yield

    given: Any = {what: [held], "timeout": 60}
    other: Any = {"output" if what == "input" else "input": [str]}
    others: Any = [Guardrails(**other)] if has_others else []
    async with worker([Guardrails(**given)]):
        handle = await at.start([Turn("Yes.")], agent="guarded")
        await began.wait()
    async with worker(others):
        while "of this run are not on this worker" not in caplog.text:
            await asyncio.sleep(0.05)
    release.touch()
    async with worker([Guardrails(**given)]):
        ran = await at.look(handle)
    if what == "validators":
        assert "The validator `held` failed" in str(ran.error)
    else:
        assert (ran.result["status"], ran.result["output"]) == ("refused", None)


def test_wrong_declarations_are_refused() -> None:
    def declare(**options: Any) -> str:
        with pytest.raises(DeclarationError) as refused:
            type(teacher)(name="x", model=MODEL, output=Query, features=[Guardrails(**options)])
        return str(refused.value)

    assert "give it a function" in declare()
    assert "input must be a list of functions" in declare(input=["x"])
    assert "retries is -1" in declare(validators=[print], retries=-1)
    assert "timeout must be more than 0" in declare(validators=[print], timeout=900)
