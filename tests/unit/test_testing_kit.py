"""The testing kit: runs without a server, and tests that fail because they expect something else."""

from __future__ import annotations

import asyncio
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
from temporalio.exceptions import ChildWorkflowError, FailureError

from mulligan import (
    Agent,
    Call,
    DeclarationError,
    DurableAgent,
    InvalidRunInputError,
    InvalidToolInput,
    Message,
    RunInput,
    Say,
    Script,
    Tool,
    ToolContext,
    ToolExecutionError,
    UnknownToolError,
    UserMessage,
    ask_model,
    tool,
)
from mulligan.testing import ScriptedModel, run_agent, run_workflow, when_told
from tests.support import structured_output_agents

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


async def test_run_agent_returns_calls_feedback_requests_and_spans() -> None:
    """Mistakes get feedback, and attempts are counted."""
    model = ScriptedModel(
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


async def test_run_agent_passes_the_context_and_returns_the_typed_output() -> None:
    model = ScriptedModel(
        Say(calls=[Call("whoami")]), "I forgot", when_told("by calling `Sum`", Say(calls=[Call("Sum", {"total": "3"})]))
    )
    run = await run_agent(summing, "?", model=model, metadata={"city": "Graz"})
    assert run.output == Sum(total=3)
    assert model.told[1][0].text == '{"agent": "summing", "metadata": {"city": "Graz"}, "resources": null}'


async def test_the_model_records_instructions_and_tools() -> None:
    """Including output tools. They are empty if the input was refused."""
    asked = Agent(
        name="asked", model="openai:nobody", instructions=lambda given: f"Mind {given.metadata['who']}.", output=Sum
    )
    model = ScriptedModel(Say(calls=[Call("Sum", {"total": 1})]))
    run = await run_agent(asked, "?", model=model, metadata={"who": "Ada"})
    assert (run.instructions, [offered.name for offered in run.tools]) == ("Mind Ada.", ["Sum"])
    assert run.tools[0].parameters["required"] == ["total"]
    empty = await run_agent(asked, "", model=ScriptedModel("never", is_strict=False))
    assert (type(empty.error), empty.instructions, empty.tools) == (InvalidRunInputError, "", [])


def client_is_customer(invalid: InvalidToolInput) -> object | None:
    return {"customer": invalid.arguments["client"]} if "client" in invalid.arguments else None


@tool(fix=client_is_customer)
async def greet(customer: str) -> str:
    """Greet."""
    return f"Hello {customer}"


@tool(fix=ask_model("scripted:mender"))
async def part(customer: str) -> str:
    """Say goodbye."""
    return f"Bye {customer}"


polite = Agent(name="polite", model="openai:nobody", tools=[greet, part])


async def test_fixers_run_and_a_repairing_model_is_checked_like_the_first() -> None:
    """A fixer may be a function or a second model."""
    mender = ScriptedModel(
        lambda told: Say('{"customer": "Grace"}' if "kunde" in told[0].text else "null"), name="mender"
    )
    model = ScriptedModel(Say(calls=[Call("greet", {"client": "Ada"}), Call("part", {"kunde": "Grace"})]), "bye")
    run = await run_agent(polite, "?", model=model, scripts=[mender, Script("unasked", [])])
    assert [call.arguments for call in run.calls] == [{"customer": "Ada"}, {"customer": "Grace"}]
    assert [[repair.by for repair in call.repairs] for call in run.calls] == [["fix"], ["fix"]]
    assert [message.text for message in model.told[1]] == ["Hello Ada", "Bye Grace"]
    assert len(mender.told) == 1


async def test_run_agent_accepts_a_run_input_and_large_conversations() -> None:
    """Arguments beside it have precedence. A conversation too large for one activity input is fetched by query."""
    given = RunInput(agent="other", messages=[UserMessage(role="user", text="y" * 400_000)], max_steps=7)
    model = ScriptedModel(Say(calls=[Call("whoami")]), "x", is_strict=False)
    run = await run_agent(calc, given, model=model, max_steps=1)
    assert run.result is not None
    assert (run.result.status, len(model.told[0][0].text)) == ("max_steps", 400_000)
    with pytest.raises(ValueError, match="max_stepps"):
        await run_agent(calc, "?", model=model, max_stepps=1)


async def test_a_model_can_be_used_for_several_runs() -> None:
    """Also after a failed run."""
    model = ScriptedModel(when_told("good", "x"))
    for prompt in ("good", "bad", "good"):
        if prompt == "bad":
            with pytest.raises(AssertionError, match="but it got: bad"):
                await run_agent(calc, prompt, model=model)
        else:
            assert (await run_agent(calc, prompt, model=model)).output == "x"


class FakeShop:
    def price(self) -> int:
        return 3


@tool
async def price(ctx: ToolContext) -> int:
    """The price of a lamp, from the shop's database."""
    found: int = ctx.resources.price()
    return found


@workflow.defn(sandboxed=False)
class AskForPrice:
    @workflow.run
    async def run(self) -> str:
        output: str = (await DurableAgent("pricing").run("How much?")).output
        return output


PRICING = Agent(name="pricing", model="scripted:test", tools=[price])


async def test_a_test_gives_its_tools_fakes_as_resources() -> None:
    """In place of the `resources()` of the agent's module, which would connect to a database."""
    turns = Say(calls=[Call("price")]), when_told("3", "3 euros.")
    run = await run_agent(PRICING, "How much?", model=ScriptedModel(*turns), resources=FakeShop())
    assert run.output == "3 euros."
    answer = await run_workflow(AskForPrice, agents=[PRICING], models=[ScriptedModel(*turns)], resources=FakeShop())
    assert answer == "3 euros."


async def test_a_real_model_in_a_test_without_a_server_is_refused_with_a_sentence() -> None:
    wrong: Any = "openai:gpt-5"
    with pytest.raises(DeclarationError, match=r"^model='openai:gpt-5' is no scripted model, but .*ScriptedModel"):
        await run_agent(PRICING, "How much?", model=wrong)


async def test_run_agent_opens_the_resources_of_the_agents_module() -> None:
    model = ScriptedModel(Say(calls=[Call("where")]), "there")
    run = await run_agent(structured_output_agents.resourceful, "Where?", model=model)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "on the corner, nowhere"
    assert structured_output_agents.OPENED[-2:] == ["opened", "closed"]


@pytest.mark.parametrize(
    ("call", "error"), [(Call("nope"), UnknownToolError), (Call("hang"), None), (Call("add", {"a": "x"}), None)]
)
async def test_run_agent_raises_the_typed_error_of_a_failed_run(call: Call, error: type | None) -> None:
    run = await run_agent(strict, "?", model=ScriptedModel(Say(calls=[call])))
    assert run.result is None
    assert run.error is not None
    assert error is None or type(run.error) is error
    assert not isinstance(run.error, ToolExecutionError)


async def test_max_steps_of_a_run_agent_call_is_a_status() -> None:
    """The remaining turns of a model that is not strict may be unused."""
    endless = ScriptedModel(Say(calls=[Call("whoami")]), Say(calls=[Call("whoami")]), "never said", is_strict=False)
    run = await run_agent(calc, "?", model=endless, max_steps=2)
    assert run.result is not None
    assert run.result.status == "max_steps"


def broken(messages: Sequence[Message]) -> Say:
    raise LookupError("in the test's own code")


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (
            ScriptedModel("a", "b"),
            AssertionError,
            r"has 2 turns, but 1 of them .* not used: the run ended as 'completed'\.$",
        ),
        (ScriptedModel(Say(calls=[Call("whoami")])), AssertionError, r"called once more, with: \{"),
        (ScriptedModel(when_told("wrong", "x")), AssertionError, r"should get 'wrong', but it got: Go\."),
        (ScriptedModel(broken), LookupError, "in the test's own code"),
        (
            ScriptedModel(lambda messages: None),  # type: ignore[arg-type, return-value]
            TypeError,
            r"The turn <lambda> returned None; a turn returns a Say or a text\.",
        ),
    ],
)
async def test_a_test_that_expects_other_turns_fails(model: ScriptedModel, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        await run_agent(calc, "Go.", model=model)


async def test_unused_turns_of_a_failed_run_are_reported_with_the_error() -> None:
    """So that the author of the test looks in the right place."""
    model = ScriptedModel(Say(calls=[Call("nope")]), "never said")
    with pytest.raises(AssertionError, match="not used: the run failed with UnknownToolError") as failure:
        await run_agent(strict, "?", model=model)
    assert isinstance(failure.value.__cause__, UnknownToolError)


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
class Counts:
    """Starts itself as a child, which continues as new until it is told to end; it is told by a signal, or cancelled."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.signal
    def end(self) -> None:
        """Tell it to end."""
        self.is_told = True

    @workflow.run
    async def run(self, role: str, turns: int = 0) -> Any:
        if role == "child":
            if turns < 3:
                workflow.continue_as_new(args=["child", turns + 1])
            await workflow.wait_condition(lambda: self.is_told)
            return turns
        child = await workflow.start_child_workflow(Counts.run, args=["child"], id="child")
        if role == "signals":
            await child.signal(Counts.end)
        else:
            child.cancel()
        try:
            return await child
        except ChildWorkflowError as error:
            return type(error.cause).__name__


@tool
async def wait_for_ever() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return ""


waiting = Agent(name="waiting", model="scripted:waits", tools=[wait_for_ever])


@workflow.defn
class Cancels:
    """Cancels an agent whose tool runs, when another agent has answered."""

    @workflow.run
    async def run(self) -> str:
        turn = asyncio.create_task(DurableAgent("waiting").run("Wait."))
        await DurableAgent("scripted_calc").run("1?")
        await workflow.wait_condition(lambda: True)
        turn.cancel()
        try:
            await turn
        except (asyncio.CancelledError, FailureError) as error:
            return type(error).__name__
        return "not cancelled"


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


async def test_run_workflow_runs_a_workflow_with_scripted_models() -> None:
    model = ScriptedModel("one", "two", name="sums")
    assert await run_workflow(Sums, 1, agents=[scripted_calc], models=[model]) == ["one", "two"]
    assert [told[0].text for told in model.told] == ["1?", "Again."]


async def test_run_workflow_raises_workflow_failure_error() -> None:
    with pytest.raises(WorkflowFailureError):
        await run_workflow(Sums, -1, agents=[scripted_calc], models=[ScriptedModel("one", name="sums")])


@pytest.mark.parametrize(("role", "result"), [("signals", 3), ("cancels", "CancelledError")])
async def test_a_workflow_may_continue_as_new_and_signal_or_cancel_its_child(role: str, result: Any) -> None:
    assert await run_workflow(Counts, role, agents=[], models=[ScriptedModel(name="nobody")]) == result


async def test_a_tool_that_runs_is_cancelled() -> None:
    models = [ScriptedModel(Say(calls=[Call("wait_for_ever", {})]), name="waits"), ScriptedModel("1", name="sums")]
    async with asyncio.timeout(60):
        said = await run_workflow(Cancels, agents=[waiting, scripted_calc], models=models)
    assert said in ("CancelledError", "ActivityError")


@pytest.mark.parametrize(("kind", "says"), [(Waits, "that this test does not have"), (Broken, "a bug of the workflow")])
async def test_features_that_need_a_server_raise_a_sentence(kind: type, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        await run_workflow(kind, agents=[], models=[ScriptedModel("never said")])


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Give the money back."""
    return f"refunded {order}"


async def test_a_call_that_waits_for_nobody_is_named() -> None:
    """With what takes a function that decides it."""
    agent = Agent(name="refunding", model="scripted:refunds", tools=[refund])
    model = ScriptedModel(Say(calls=[Call("refund", {"order": 7})]), name="refunds")
    with pytest.raises(RuntimeError, match=r"These calls wait: refund \(call_1_1\) for approval\. `person=` takes"):
        await run_agent(agent, "Refund order 7.", model=model)


def test_importing_the_testing_kit_loads_no_heavy_library() -> None:
    """A project's conftest.py imports it for every test."""
    heavy = "temporalio.worker", "temporalio.client", "opentelemetry", "openai", "worker", "workflows", "activities"
    code = f"import sys, mulligan.testing; sys.exit(', '.join(set({heavy}) & set(sys.modules)) or 0)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("number", range(2))
def test_the_examples_of_the_testing_page_pass(number: int, tmp_path: Path) -> None:
    """docs/testing.md, run by pytest as a user would."""
    (tmp_path / "test_page.py").write_text(BLOCKS[number])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{BLOCKS[number].count('def test_')} passed" in ran.stdout
