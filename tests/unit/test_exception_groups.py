"""What a task group raises counts as what is in it: for the model's text, `ToolError`, `retry_on`, `handle_errors`, isolated tools."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import Agent, Call, Say, ToolContext, ToolError, tool
from mulligan.activities.call_tool import _is_retried, _tool_error
from mulligan.policy import text_for_model
from mulligan.schema.error_text import error_text
from mulligan.schema.exception_group import MOST_CAUSES, causes, single_cause
from mulligan.testing import ScriptedModel, run_agent
from tests.support.core_parts import tool_call
from tests.support.examples import examples

LEAVES = (
    ToolError("Ask for the number."),
    ValueError("bad number 8"),
    ConnectionError("db down"),
    KeyError("inner"),
    OSError(),
)


def nested(leaf: BaseException, depth: int) -> BaseException:
    """A group of groups around an exception."""
    for _ in range(depth):
        leaf = BaseExceptionGroup("unhandled errors in a TaskGroup", [leaf])
    return leaf


def outcome(raised: BaseException, **options: Any) -> tuple[str, str, bool, bool]:
    """The kind and text of a failed call, whether it is tried again, and whether its policy covers it."""

    @tool(attempts=2, retry_on=ConnectionError, handle_errors=(ConnectionError, ToolError), **options)
    def look() -> str:
        """Look."""
        return ""

    error = _tool_error(single_cause(raised), look, tool_call(), 1)
    try:
        is_covered = bool(text_for_model(error, cast("Any", look.handle_errors), "text"))
    except type(error):
        is_covered = False
    return error.kind, error.message, _is_retried(look, error), is_covered


@given(leaf=st.sampled_from(LEAVES), depth=st.integers(1, 40))
@settings(max_examples=examples(100))
def test_a_group_of_one_counts_as_what_is_in_it(leaf: BaseException, depth: int) -> None:
    assert outcome(nested(leaf, depth)) == outcome(leaf)


@given(leaves=st.lists(st.tuples(st.sampled_from(LEAVES), st.integers(0, 3)), min_size=2, max_size=5))
@settings(max_examples=examples(100))
def test_several_are_told_together_and_count_as_what_all_of_them_are(leaves: list[tuple[BaseException, int]]) -> None:
    kind, text, is_retried, is_covered = outcome(BaseExceptionGroup("two", [nested(*each) for each in leaves]))
    each = [outcome(leaf) for leaf, _ in leaves]
    assert all(error_text(leaf) in text for leaf, _ in leaves)
    assert kind == ("tool_error" if {one[0] for one in each} == {"tool_error"} else "tool_exception")
    assert (is_retried, is_covered) == (all(one[2] for one in each), all(one[3] for one in each))


def test_the_first_exceptions_of_a_huge_group_are_looked_at() -> None:
    group = ExceptionGroup("many", [ExceptionGroup("more", [ValueError(n) for n in range(100)]) for _ in range(100)])
    assert [str(each) for each in causes(group)] == [str(n) for n in range(MOST_CAUSES)]
    assert error_text(ExceptionGroup("g", [ValueError("a"), ValueError("a"), OSError()])) == "ValueError: a; OSError"


@pytest.mark.parametrize(
    ("raised", "kind", "text", "attempts"),
    [
        (ToolError("There is no order 8."), "tool_error", "There is no order 8.", 1),
        (ValueError("bad number 8"), "tool_exception", "`look` raised ValueError: bad number 8", 1),
        (ConnectionError("db down"), "tool_exception", "`look` raised ConnectionError: db down", 3),
    ],
)
async def test_what_a_task_of_a_tool_raises_is_told_as_if_the_tool_had(
    raised: Exception, kind: str, text: str, attempts: int
) -> None:
    async def fail() -> None:
        raise raised

    tried: list[int] = []

    @tool(attempts=3, retry_on=ConnectionError)
    async def look(ctx: ToolContext) -> str:
        """Look."""
        tried.append(ctx.attempt)
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return "never"

    model = ScriptedModel(Say(calls=[Call("look", {})]), Say("Done."))
    run = await run_agent(Agent(name="a", model="scripted:m", tools=[look]), "Go.", model=model)
    [call] = run.steps[0].tool_calls
    assert call.result is not None
    assert call.result.error is not None
    assert (call.result.error.kind, call.result.text.splitlines()[0], len(tried)) == (kind, text, attempts)
