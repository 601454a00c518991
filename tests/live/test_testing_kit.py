"""The testing kit on the embedded server, compared with runs without a server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.research_team import editor
from mulligan import Agent, Call, RunInput, Say, UserMessage
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.testing.plugin import AgentsOnTemporal, agents_on_temporal, mulligan_loop, mulligan_server
from tests.support.shop_agents import shop, strict_shop
from tests.support.structured_output_agents import by_function, refund, strict_output

__all__ = ["agents_on_temporal", "mulligan_loop", "mulligan_server"]

PAGE = Path(__file__).parents[2] / "docs/testing.md"


FINDING = {"species": "grey", "pairs": 3, "trend": "stable", "eats": ["fish"]}
GO = "Go."
LONG = RunInput(agent="shop", messages=[UserMessage(role="user", text="y" * 400_000)])
"""Too large for an activity input: the worker fetches it from the workflow by query."""
SCRIPTS: dict[str, tuple[Agent, str | RunInput, list[Say]]] = {
    "mistakes": (
        shop, GO, [
            Say("Let me see.", calls=[Call("search_orders", {"client": "Ada"}), Call("click", "{'element': '#a'}")]),
            Say(calls=[Call("flaky"), Call("clik"), Call("give", {"what": "circular"})]),
            Say(calls=[Call("search_orders", {"customer": "Ada"})]),
            Say("done"),
        ],
    ),
    "tools that go wrong": (
        shop, GO, [
            Say(calls=[Call(name) for name in ("refuse", "explode", "leave", "hang_thread", "ignore_cancel")]),
            Say(calls=[Call("now", id="twice"), Call("now", id="twice"), Call("now", "[1")]),
            Say(calls=[Call("click", {}), Call("click", {})]),
            Say(calls=[Call("click", {})]),
            Say(""),
            Say("done", finish_reason="length"),
        ],
    ),
    "no step left": (shop, GO, [Say(calls=[Call("now")])] * 6),
    "a long conversation": (shop, LONG, [Say(calls=[Call("give", {"what": "huge"})]), Say("done")]),
    "a failure that is not told": (strict_shop, GO, [Say(calls=[Call("now")]), Say(calls=[Call("explode")])]),
    "an unknown tool that is not told": (strict_shop, GO, [Say(calls=[Call("clik")])]),
    "attempts, then not told": (strict_shop, GO, [Say(calls=[Call("flaky")]), Say(calls=[Call("hang_loop")])]),
    "structured output": (
        refund, GO, [
            Say("You get it back."),
            Say(calls=[Call("Refund", {"order": 13, "amount": 1}), Call("now")]),
            Say(calls=[Call("Refund", {"order": 7, "amount": "12.5"})]),
        ],
    ),
    "structured output by a function": (
        by_function, GO, [
            Say('{"order": 7, "amount": 1}'),
            Say(calls=[Call("Refund", {"order": 7})]),
            Say(calls=[Call("Refund", {"order": 7, "amount": 1}), Call("Refund", {"order": 8, "amount": 1})]),
            Say(calls=[Call("Refund", {"order": 7, "amount": 1})]),
        ],
    ),
    "structured output that is not told": (strict_output, GO, [Say(calls=[Call("Refund", {"order": 7})])]),
}  # fmt: skip


def comparable(run: AgentRun) -> dict[str, object]:
    """Everything except what differs in each run: ids of traces and workflows, and times."""
    names = ("mulligan.recovered", "mulligan.attempt", "error.type", "ai.toolCall.name", "ai.toolCall.error")
    return {
        "result": run.result and run.result.model_dump(exclude={"trace_id"}),
        "error": run.error and (type(run.error), str(run.error)),
        "steps": run.steps,
        "messages": run.messages,
        "told": (run.instructions, run.tools),
        "spans": sorted((s.name, s.status, *(str(s.attributes.get(name)) for name in names)) for s in run.spans),
    }


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_run_without_a_server_equals_the_run_on_a_server(
    agents_on_temporal: AgentsOnTemporal, script: str
) -> None:
    """Result or error, steps, messages, model requests and spans are equal."""
    agent, prompt, says = SCRIPTS[script]
    there, here = ScriptedModel(*says, is_strict=False), ScriptedModel(*says, is_strict=False)
    on_server = comparable(await agents_on_temporal.run_async(agent, prompt, model=there))
    assert comparable(await run_agent(agent, prompt, model=here)) == on_server
    assert here.told == there.told


def test_a_model_asked_more_often_than_scripted_fails_the_test(agents_on_temporal: AgentsOnTemporal) -> None:
    with pytest.raises(AssertionError, match="called once more, with: noon"):
        agents_on_temporal.run(shop, GO, model=ScriptedModel(Say(calls=[Call("now")])))


def test_the_example_of_the_testing_page_passes_in_a_users_project(tmp_path: Path) -> None:
    """With the plugin in the user's conftest.py."""
    block = next(
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "agents_on" in text
    )
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["mulligan.testing.plugin"]\n')
    (tmp_path / "test_page.py").write_text(re.sub(r"pytest_plugins.*\n", "", block))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_models_of_sub_agents_are_scripted_by_name(agents_on_temporal: AgentsOnTemporal) -> None:
    """As without a server."""
    run = agents_on_temporal.run(
        editor,
        GO,
        model=ScriptedModel(Say(calls=[Call("researcher", {"prompt": "grey"})]), "They eat fish."),
        sub_agents={"researcher": ScriptedModel(Say(calls=[Call("Finding", FINDING)]))},
    )
    [call] = run.calls
    assert (run.output, call.result and json.loads(call.result.text)) == ("They eat fish.", FINDING)
