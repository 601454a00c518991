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

from mulligan import Agent, Guardrails, fork_run
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.guardrail_agents import CHECKED, MODEL
from tests.support.lab import Lab, call
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


FORKS: list[tuple[dict[str, Any], list[list[str]], str]] = [
    ({"message": "Solve 2x = 4"}, [["1 + 2?", "", "3", "Solve 2x = 4"]], "refused"),
    ({"prompt": "Solve 2x = 4"}, [["Solve 2x = 4"]], "refused"),
    ({"prompt": "Solve 2x = 4", "message": "Go on."}, [["Solve 2x = 4"]], "refused"),
    ({"prompt": "2 + 1?", "message": "2x"}, [["2 + 1?"], ["2 + 1?", "", "3", "2x"]], "refused"),
    ({"prompt": "2 + 1?"}, [["2 + 1?"]], "completed"),
    ({"message": "Go on."}, [["1 + 2?", "", "3", "Go on."]], "completed"),
    ({"results": {"a1": 7}}, [], "completed"),
]


async def test_what_a_fork_puts_in_is_checked_before_its_first_model_call(school: Lab) -> None:
    adding = [call("add", '{"a": 1, "b": 2}', "a1"), call("add", '{"a": 3, "b": 2}', "a2"), Turn("It is 5.")]
    ran = await school.run(adding, agent="teacher", prompt="1 + 2?")
    for edits, checked, status in FORKS:
        asked = len(school.model.requests_of(ran.id))
        forked = await school.look(await fork_run(school.client, ran.id, at=2, edits=edits, tools="live"))
        assert (forked.result["status"], forked.result["steps"]) == (status, 1 if status == "refused" else 3), edits
        assert [each[1] for each in CHECKED[forked.id] if each[0] == "input"] == checked, edits
        assert len(school.model.requests_of(ran.id)) - asked == (0 if status == "refused" else 2), edits


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


@pytest.mark.parametrize(("what", "has_others"), [("input", False), ("output", True), ("validators", False)])
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
