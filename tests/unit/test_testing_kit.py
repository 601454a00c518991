"""The testing kit: runs without a server do what a server's do, and a test that expects something else fails."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import workflow
from temporalio.client import WorkflowFailureError

from mulligan import (
    Agent,
    Call,
    DurableAgent,
    Message,
    Say,
    Tool,
    ToolContext,
    ToolExecutionError,
    UnknownToolError,
    tool,
)
from mulligan.testing import Model, run_agent, run_workflow, when_told
from tests.support import answers

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)


class Sum(BaseModel):
    total: int


@tool(attempts=3, retry_on=ConnectionError)
def add(a: int, b: int, ctx: ToolContext) -> int:
    """Add, at the second attempt."""
    if ctx.attempt == 1:
        raise ConnectionError("down")
    return a + b


@tool(timeout=0.1)
def hang() -> None:
    """Hang."""
    import time

    time.sleep(1)


@tool(local=True)
async def whoami(ctx: ToolContext) -> dict[str, Any]:
    """Say what the context holds."""
    return {"agent": ctx.agent, "metadata": dict(ctx.metadata), "resources": ctx.resources}


TOOLS: list[Tool] = [add, hang, whoami]
calc = Agent(name="calc", model="openai:nobody", tools=TOOLS)
summing = Agent(name="summing", model="openai:nobody", tools=TOOLS, output=Sum)
strict = Agent(name="strict", model="openai:nobody", tools=TOOLS, handle_errors=False)


async def test_a_run() -> None:
    """Mistakes are told, attempts are counted, what the model was told and the spans can be looked at."""
    model = Model(
        Say(calls=[Call("add", {"a": 1})]),
        when_told("`b`: is required", Say(calls=[Call("add", {"a": 1, "b": "2"}), Call("hang")])),
        "three",
    )
    run = await run_agent(calc, "1 + 2?", model=model)
    assert run.result is not None
    assert (run.output, run.result.steps, run.result.recovered_failures) == ("three", 3, 2)
    assert [call.result and call.result.error and call.result.error.kind for call in run.calls] == [
        "invalid_arguments",
        None,
        "tool_timeout",
    ]
    assert (run.calls[1].arguments, run.calls[1].attempts) == ({"a": 1, "b": 2}, 2)
    assert [[message.role for message in told] for told in model.told] == [["user"], ["tool"], ["tool", "tool"]]
    assert [span.status for span in run.spans if span.name == "ai.toolCall"].count("UNSET") == 1
    assert (len(run.messages), run.spans[0].name) == (7, "invoke_agent calc")


async def test_context_and_output() -> None:
    model = Model(
        Say(calls=[Call("whoami")]), "I forgot", when_told("by calling `Sum`", Say(calls=[Call("Sum", {"total": "3"})]))
    )
    run = await run_agent(summing, "?", model=model, metadata={"city": "Graz"})
    assert run.output == {"total": 3}
    assert model.told[1][0].text == '{"agent": "summing", "metadata": {"city": "Graz"}, "resources": null}'


async def test_resources_of_the_agents_module() -> None:
    model = Model(Say(calls=[Call("where")]), "there")
    run = await run_agent(answers.resourceful, "Where?", model=model)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "on the corner, nowhere"
    assert answers.OPENED[-2:] == ["opened", "closed"]


@pytest.mark.parametrize(
    ("call", "error"), [(Call("nope"), UnknownToolError), (Call("hang"), None), (Call("add", {"a": "x"}), None)]
)
async def test_a_run_that_fails(call: Call, error: type | None) -> None:
    run = await run_agent(strict, "?", model=Model(Say(calls=[call])))
    assert run.result is None
    assert run.error is not None
    assert error is None or type(run.error) is error
    assert not isinstance(run.error, ToolExecutionError)


async def test_the_model_of_another_test() -> None:
    """Max steps, a status; and an agent that the worker does not have."""
    endless = Model(Say(calls=[Call("whoami")]), Say(calls=[Call("whoami")]), "never said", is_strict=False)
    run = await run_agent(calc, "?", model=endless, max_steps=2)
    assert run.result is not None
    assert run.result.status == "max_steps"


def broken(messages: Sequence[Message]) -> Say:
    raise LookupError("in the test's own code")


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (Model("a", "b"), AssertionError, r"has 2 turns, but 1 of them were not asked for"),
        (Model(Say(calls=[Call("whoami")])), AssertionError, r"asked once more; it was told: \{"),
        (Model(when_told("wrong", "x")), AssertionError, r"was to be told 'wrong', but was told: Go\."),
        (Model(broken), LookupError, "in the test's own code"),
    ],
)
async def test_a_test_that_expects_something_else_fails(model: Model, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        await run_agent(calc, "Go.", model=model)


@workflow.defn
class Sums:
    """Two turns of one agent, with a timer between."""

    @workflow.run
    async def run(self, first: int) -> list[Any]:
        agent = DurableAgent("scripted_calc")
        one = await agent.run(f"{first}?")
        await workflow.sleep(86_400)
        if first < 0:
            await agent.run("?", max_steps=1, model="scripted:nobody")
        return [one.output, (await agent.run("Again.")).output]


@workflow.defn
class Waits:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


@workflow.defn
class Broken:
    @workflow.run
    async def run(self) -> None:
        raise LookupError("a bug of the workflow")


scripted_calc = Agent(name="scripted_calc", model="scripted:sums", tools=TOOLS)


async def test_a_workflow() -> None:
    model = Model("one", "two", name="sums")
    assert await run_workflow(Sums, 1, agents=[scripted_calc], models=[model]) == ["one", "two"]
    assert [told[0].text for told in model.told] == ["1?", "Again."]


async def test_a_workflow_that_fails() -> None:
    with pytest.raises(WorkflowFailureError):
        await run_workflow(Sums, -1, agents=[scripted_calc], models=[Model("one", name="sums")])


@pytest.mark.parametrize(("kind", "says"), [(Waits, "waits for what never comes"), (Broken, "a bug of the workflow")])
async def test_what_only_a_server_can_do(kind: type, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        await run_workflow(kind, agents=[], models=[])


@pytest.mark.parametrize("number", range(2))
def test_the_page_is_run(number: int, tmp_path: Path) -> None:
    """docs/testing.md: its tests pass as a user would run them."""
    (tmp_path / "test_page.py").write_text(BLOCKS[number])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
