"""`handle_errors`: its five forms, their precedence, and faults of policy functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from mulligan import (
    Agent,
    InvalidToolInputError,
    MulliganError,
    ToolCall,
    ToolCallError,
    ToolError,
    ToolExecutionError,
    UnknownToolError,
    tool,
)
from mulligan.activities.answers import failure_policy
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.policy import MODELS_OWN_MISTAKES, HandleErrors, text_for_model
from tests.support.prepare_one_call import prepare_for

CALL: dict[str, Any] = {"tool_name": "look", "call_id": "c1", "raw_arguments": "{}"}


def bad_input() -> ToolCallError:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(int).validate_python("x")
    return InvalidToolInputError("message", detail="quoting", kind="invalid_arguments", source=raised.value, **CALL)


def failed_tool() -> ToolCallError:
    return ToolExecutionError("message", kind="tool_exception", source=OSError("disk"), **CALL)


def told_so(error: ToolCallError) -> str:
    return f"{error.tool_name}: mind the {error.kind}"


def raises(error: ToolCallError) -> str:
    raise RuntimeError("enough")


def raises_nothing_to_say(error: ToolCallError) -> str:
    raise RuntimeError


def raises_ours(error: ToolCallError) -> str:
    raise error


class Stop(ToolCallError):
    """A user's own."""


@pytest.mark.parametrize(
    ("policy", "on_input", "on_tool"),
    [
        (True, "standard", "standard"),
        (False, None, None),
        ("Try harder.", "Try harder.", "Try harder."),
        ("", "", ""),
        (ValidationError, "standard", None),
        (OSError, None, "standard"),
        (Exception, "standard", "standard"),
        (InvalidToolInputError, "standard", None),
        (ToolCallError, "standard", "standard"),
        (MulliganError, "standard", "standard"),
        (ToolError, None, None),
        ((), None, None),
        ((KeyError, OSError), None, "standard"),
        ((ValidationError, ToolExecutionError), "standard", "standard"),
        (told_so, "look: mind the invalid_arguments", "look: mind the tool_exception"),
        (raises, None, None),
        (raises_ours, None, None),
    ],
)
def test_each_form_of_a_policy_returns_its_text_or_raises_the_error(
    policy: HandleErrors, on_input: str | None, on_tool: str | None
) -> None:
    """The text returned to the model; None: the run fails with the typed error. Types match the error or its source."""
    for error, told in ((bad_input(), on_input), (failed_tool(), on_tool)):
        if told is not None:
            assert text_for_model(error, policy, "standard") == told
            continue
        with pytest.raises(type(error)) as raised:
            text_for_model(error, policy, "standard")
        assert (raised.value.kind, raised.value.call_id) == (error.kind, "c1")


@pytest.mark.parametrize(
    ("policy", "reason"), [(False, "message"), (raises, "enough"), (raises_nothing_to_say, "RuntimeError")]
)
def test_the_exception_of_a_policy_function_is_the_reason_of_the_error(policy: HandleErrors, reason: str) -> None:
    """Everything else of the typed error is unchanged, including its source."""
    with pytest.raises(ToolExecutionError) as raised:
        text_for_model(failed_tool(), policy, "standard")
    assert (raised.value.message, str(raised.value.source)) == (reason, "disk")
    assert raised.value.raw_arguments == "{}"


def test_a_mulligan_error_of_a_policy_is_raised_unchanged() -> None:
    ours = Stop("that is all", kind="denied")

    def stop(error: ToolCallError) -> str:
        raise ours

    with pytest.raises(Stop) as raised:
        text_for_model(failed_tool(), stop, "standard")
    assert raised.value is ours


def test_the_kinds_of_mistakes_by_the_model_are_those_of_the_contract() -> None:
    assert sorted(MODELS_OWN_MISTAKES) == [
        "duplicate_call",
        "invalid_arguments",
        "invalid_code",
        "invalid_json",
        "truncated_call",
        "unknown_tool",
    ]


@pytest.fixture
async def runtime() -> AsyncIterator[ToolRuntime]:
    runtime = ToolRuntime()
    yield runtime
    runtime.close()


@tool
def look(x: int = 0) -> str:
    """Look."""
    return ""


def agent(policy: HandleErrors = True) -> Agent:
    return Agent(name="a", model="scripted:x", tools=[look], handle_errors=policy)


STANDARD = "message\nquoting"


@pytest.mark.parametrize(
    ("of_agent", "of_tool", "override", "on_input", "on_tool"),
    [
        (True, None, None, STANDARD, "message"),
        (False, None, None, None, None),
        (False, True, None, STANDARD, "message"),
        (True, False, None, None, None),
        ("agent's", None, None, "agent's", "agent's"),
        ("agent's", "tool's", None, "tool's", "tool's"),
        ("agent's", "", None, "", ""),
        (told_so, None, None, "look: mind the invalid_arguments", "look: mind the tool_exception"),
        (raises, None, None, None, None),
        ("agent's", "tool's", "throw", None, "tool's"),
        ("agent's", None, "throw", None, "agent's"),
        (False, False, "feedback", STANDARD, None),
        ("agent's", "tool's", "feedback", STANDARD, "tool's"),
        ("\ud800", None, None, "\ufffd", "\ufffd"),
    ],
)
async def test_the_run_input_overrides_the_policy_of_the_tool_and_that_of_the_agent(
    runtime: ToolRuntime, of_agent: Any, of_tool: Any, override: str | None, on_input: str | None, on_tool: str | None
) -> None:
    """The run's input applies to mistakes of the model only."""
    with_policy = tool(name="look", handle_errors=of_tool)(look.function)
    for error, text in ((bad_input(), on_input), (failed_tool(), on_tool)):
        policy = policy_for(error, agent=agent(of_agent), tool=with_policy, on_invalid_tool_input=override)
        told = await apply_policy(error, policy, runtime)
        assert (told.failure is None) is (text is not None)
        assert text is None or told.text == text
        assert (told.error.kind, told.error.message) == (error.kind, "message")
        assert told.failure is None or told.failure["type"] == type(error).__name__


@pytest.mark.parametrize(
    ("policy", "shown"),
    [(True, "message"), ("Try harder.", "Try harder."), (told_so, "look: mind the invalid_arguments")],
)
async def test_spans_contain_the_part_of_the_text_that_quotes_nothing(
    runtime: ToolRuntime, policy: HandleErrors, shown: str
) -> None:
    """Of the standard text. The text of a policy is used unchanged."""
    assert (await apply_policy(bad_input(), policy, runtime)).safe_text == shown


async def test_the_policy_of_the_agent_applies_to_unknown_tools(runtime: ToolRuntime) -> None:
    with pytest.raises(UnknownToolError) as raised:
        await prepare_for(ToolCall(id="1", name="lok", arguments="{}"), agent(), runtime)
    told = await apply_policy(raised.value, UnknownToolError, runtime)
    assert told.failure is None
    assert (await apply_policy(raised.value, ValidationError, runtime)).failure is not None


async def test_without_an_agent_the_standard_text_is_returned(runtime: ToolRuntime) -> None:
    """As on a worker with another version of the code."""
    told = await apply_policy(bad_input(), policy_for(bad_input(), agent=None, tool=None), runtime)
    assert (told.text, told.safe_text, told.failure) == (STANDARD, "message", None)


async def test_the_reason_is_in_the_failure_that_is_returned_to_the_workflow(runtime: ToolRuntime) -> None:
    told = await apply_policy(failed_tool(), raises, runtime)
    assert told.failure is not None
    assert (told.failure["type"], told.failure["message"]) == ("ToolExecutionError", "enough")
    assert told.failure["fields"]["source"] == {"type": "OSError", "message": "disk"}


async def test_after_a_policy_function_that_hangs_the_standard_text_is_returned(
    runtime: ToolRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def hangs(error: ToolCallError) -> str:
        over.wait(30)
        return "late"

    monkeypatch.setattr(failure_policy, "POLICY_LIMIT", 0.05)
    told = await apply_policy(bad_input(), hangs, runtime)
    over.set()
    assert (told.text, told.failure) == (STANDARD, None)


@pytest.mark.parametrize("raised", [SystemExit("no"), asyncio.CancelledError("no")], ids=["exit", "cancelled"])
async def test_an_exit_or_cancellation_in_a_policy_function_only_fails_the_run(
    runtime: ToolRuntime, raised: BaseException
) -> None:
    def ends(error: ToolCallError) -> str:
        raise raised

    assert (await apply_policy(bad_input(), ends, runtime)).failure is not None
