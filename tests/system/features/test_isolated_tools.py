"""Tools that run in a child process: whatever they do, the worker and its other runs go on."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.isolated_agents import VARIABLES
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
from tests.system.features.test_supervisor import line_with, supervised

EXPECTED = {
    "greet": (None, '{"hello": "Ada"}'),
    "backtrack": ("tool_timeout", "`backtrack` did not finish within 1 s"),
    "take_memory": ("tool_exception", "`take_memory` did not finish: it needed more than the 512 MB of memory"),
    "crash": ("tool_exception", "`crash` did not finish: its process was killed by SIGSEGV"),
    "refuse": ("tool_error", "not today"),
    "fail": ("tool_exception", "`fail` raised OwnError: own words"),
    "add": (None, "3"),
    "variables": (None, '["MAIL_TOKEN"]'),
    "named_variables": (None, '["OPENAI_API_KEY"]'),
}
ARGUMENTS = {"greet": '{"name": "Ada"}', "add": '{"one": 1, "two": 2}'}


async def test_an_isolated_tool_that_harms_its_process_gets_an_error_result(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls are in one step: each has its own outcome, and the plain tool beside them returns its result."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "door:token")
    async with running_worker(lab.client, load(["tests.support.isolated_agents"]), lab.telemetry, "isolated"):
        calls = [(name, ARGUMENTS.get(name, "{}"), None) for name in EXPECTED]
        ran = await replace(lab, task_queue="isolated").run([Turn(calls=calls), DONE], agent="isolated")
    assert ran.result["status"] == "completed"
    outcomes = {each["name"]: each["result"] for each in ran.calls}
    for name, (kind, text) in EXPECTED.items():
        assert (outcomes[name]["error"] or {}).get("kind") == kind, outcomes[name]
        assert text in outcomes[name]["text"]
    attempts = {each["name"]: each["attempts"] for each in ran.calls}
    assert (attempts["fail"], attempts["crash"]) == (2, 1)
    failed = [name for name, (kind, _) in EXPECTED.items() if kind]
    recovered = [span for span in ran.spans_of("ai.toolCall") if span.attributes["mulligan.recovered"]]
    assert sorted(span.attributes["ai.toolCall.name"] for span in recovered) == sorted(failed)


async def test_an_isolated_call_of_a_supervised_worker_sees_no_secret_of_its_environment(
    lab: Lab, temporal: DevServer
) -> None:
    """The processes of a deployment are forked: what the supervisor was started with does not reach the call by another way."""
    queue = f"isolated-{uuid.uuid4().hex[:6]}"
    secrets = {**dict.fromkeys(VARIABLES, "door:token"), **lab.model.environment()}
    async with supervised(queue, temporal, module="tests.support.isolated_agents", **secrets) as supervisor:
        await line_with(supervisor, "Supervising 2")
        calls = [("variables", "{}", None), ("named_variables", "{}", None), ("greet", '{"name": "Ada"}', None)]
        ran = await replace(lab, task_queue=queue).run([Turn(calls=calls), DONE], agent="isolated")
    seen = {each["name"]: json.loads(each["result"]["text"]) for each in ran.calls}
    assert seen == {
        "variables": ["MAIL_TOKEN"], "named_variables": ["OPENAI_API_KEY"], "greet": {"hello": "Ada"}
    }  # fmt: skip
