"""The declaration of `undo`, the ids of undos, and what the function is given of a result."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from mulligan import Agent, DeclarationError, tool
from mulligan.activities.pin_facts import _tool_facts
from mulligan.activities.tool_running.result_value import result_value
from mulligan.features.undo import UndoOption
from mulligan.wire.undo import CallToUndo, UndoList, UndoSchedule, undo_id


def back(arguments: Any, result: Any, ctx: Any) -> None:
    """Take it back."""


def two(arguments: Any, result: Any) -> None:
    """Take too little."""


def four(arguments: Any, result: Any, ctx: Any, more: Any) -> None:
    """Take too much."""


def named(*, arguments: Any, result: Any, ctx: Any) -> None:
    """Take names only."""


def change(part: str) -> str:
    """Change a part."""
    return part


@pytest.mark.parametrize("function", [two, four, named, "back", 3, lambda: None])
def test_a_wrong_undo_is_refused_at_declaration(function: Any) -> None:
    with pytest.raises(DeclarationError, match=r"tool 'change': undo must be a function of \(arguments, result, ctx\)"):
        tool(undo=function)(change)


@pytest.mark.parametrize("function", [back, lambda *given: None, functools.partial(four, more=1), dict.update])
def test_what_can_be_called_with_three_arguments_is_an_undo(function: Any) -> None:
    assert tool(undo=function)(change).option(UndoOption).undo is function


@pytest.mark.parametrize("attempts", [0, -1, 1.5, "2", None, True])
def test_wrong_attempts_are_refused(attempts: Any) -> None:
    with pytest.raises(DeclarationError, match="undo_attempts must be a whole number from 1 to 1,000,000, but is"):
        tool(undo=back, undo_attempts=attempts)(change)


def test_attempts_without_an_undo_are_refused() -> None:
    with pytest.raises(DeclarationError, match="undo_attempts is an option of tools with undo"):
        tool(undo_attempts=2)(change)


def test_what_is_pinned_of_it_when_a_run_opens() -> None:
    agent = Agent(name="a", model="openai:m")
    assert _tool_facts(agent, tool(undo=back, undo_attempts=3)(change), None).features == {"undo": 3}
    assert _tool_facts(agent, tool(change), None).features == {}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("7", None, "7"),
        ("[7]", None, [7]),
        ("seven", None, "seven"),
        ("null", {"type": "null"}, None),
        ("[" * 100_000, None, "[" * 100_000),
    ],
)
def test_the_value_of_a_result(text: str, schema: Any, value: Any) -> None:
    assert result_value(text, schema) == value


@pytest.mark.parametrize("text", ["seven", '{"id": 1, … 300 characters were left out', "[" * 100_000])
def test_a_result_that_is_no_json_has_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text[:10])):
        result_value(text, {"type": "object"})


def test_the_ids_of_undos_are_legal_and_unlike() -> None:
    long = "r" * 2_000
    known = {undo_id(each, first, number) for each in (long, "r") for first in ("aaaaaaaa", "b") for number in (1, 2)}
    assert len(known) == 8
    wide = {undo_id("ж" * 498 + each, "a", 1) for each in "xy"}
    assert len(wide) == 2
    assert all(len(each.encode()) < 1_000 for each in known | wide)


@pytest.mark.parametrize(
    "schedule",
    [
        {"attempts": 0, "timeout": 1},
        {"attempts": 2**40, "timeout": 1},
        {"attempts": 1, "timeout": 1e30},
        {"attempts": 1, "timeout": 1, "task_queue": ""},
    ],
)
def test_a_plan_by_which_nothing_can_be_scheduled_is_not_used(schedule: dict[str, Any]) -> None:
    call = CallToUndo(
        offset=1,
        at="2026-11-21T12:00:00.000Z",
        call_id="c",
        name="n",
        agent="a",
        step=1,
        run="r",
        run_id="i",
        schedule=UndoSchedule(**schedule),
    )
    assert UndoList(calls=[call]).fault() is not None
