"""The limits of an answer's parts: nothing is cut that fits, and what is too large is cut to its share."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import Agent, Say, ToolStrategy
from mulligan.activities.answers import size_limits
from mulligan.activities.answers.size_limits import (
    fit_answer,
    fit_call,
    fit_name,
    fit_prepared,
    fit_repairs,
    fit_text,
    oversized_arguments,
    oversized_calls,
)
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import Citation, ErrorInfo, HostedCall, Repair
from mulligan.wire.model_call import PreparedCall, RejectedAnswer
from mulligan.wire.shorten import json_size
from tests.support.core_parts import answer_of, tool_call

MOST = size_limits.ARGUMENTS_BYTES


@pytest.mark.parametrize(
    ("sizes", "too_long"),
    [
        ([], []),
        ([MOST], []),
        ([MOST + 1], [0]),
        ([MOST, 1], [0]),
        ([MOST // 2, MOST // 2], []),
        ([MOST // 2 + 1, MOST // 2], [0]),
        ([MOST // 2 + 1, MOST // 2 + 1], [1]),
        ([10, MOST // 3, MOST], [2]),
        ([MOST // 3 + 1, MOST // 3, MOST // 3 + 2], [2]),
        ([20_000] * 100, [*range(25, 100)]),
        ([MOST, *[20_000] * 20], [0]),
    ],
)
def test_where_all_arguments_are_too_long_the_largest_that_do_not_fit_are(
    sizes: list[int], too_long: list[int]
) -> None:
    """A call runs whose own arguments are not to blame."""
    calls = [tool_call(arguments="x" * (size - 2)) for size in sizes]  # two bytes are the quotation marks of JSON
    assert oversized_calls(calls) == set(too_long)
    assert oversized_arguments(["x" * (size - 2) for size in sizes]) == too_long


def test_arguments_that_never_became_valid_take_no_room() -> None:
    assert oversized_arguments([None, "x" * MOST, None]) == [1]
    assert oversized_arguments([None]) == []


def test_a_texts_limit_is_in_characters_and_in_bytes() -> None:
    assert fit_text("x" * 100_000) == "x" * 100_000
    assert fit_text("x" * 100_001) == "x" * 100_000 + "\n[… 1 more characters were left out]"
    assert json_size(fit_text("\x00" * 100_000)) < size_limits.TEXT_BYTES + 100
    assert (fit_name("n" * 200), fit_name("n" * 201)) == ("n" * 200, "n" * 200 + "…")


def test_a_call_that_is_too_long_keeps_the_beginning_of_its_arguments() -> None:
    short = fit_call(tool_call(arguments="x" * 5_000))
    assert short.arguments.startswith("x" * 1_000 + "\n[… 4,000 more")


def of(count: int, **fields: Any) -> list[PreparedCall]:
    return [PreparedCall(**fields) for _ in range(count)]


def repair_of(size: int) -> Repair:
    return Repair(by="fix", before="b" * size, after="a" * size)


def test_repairs_are_shortened_only_where_all_of_them_are_too_long() -> None:
    few = of(2, repairs=[repair_of(30_000)])
    assert fit_prepared(few) == few
    many = fit_prepared(of(4, repairs=[repair_of(30_000)]))
    sides = [len(each.before) for call in many for each in call.repairs]
    assert len(sides) == 4
    # Each side has its part of the bytes that all sides share; texts are cut to a sixth, whose JSON may be six times as long.
    assert all(150_000 // 8 // 6 <= side < 150_000 // 8 // 6 + 100 for side in sides)
    assert many[0].repairs[0].after.startswith("aaa")


def test_a_repair_has_room_of_its_own() -> None:
    [kept] = fit_repairs([repair_of(9_000)])
    assert kept == repair_of(9_000)
    [short] = fit_repairs([repair_of(11_000)])
    assert len(short.before) < 2_000
    assert (short.by, short.after[0]) == ("fix", "a")
    [shorter] = fit_repairs([repair_of(9_000)], 600)
    assert len(shorter.after) < 200


def test_feedback_is_shortened_only_where_all_of_it_is_too_long() -> None:
    error = ErrorInfo(kind="invalid_arguments", message="m" * 50_000)
    few = of(2, text="t" * 50_000, error=error)
    assert fit_prepared(few) == few
    for call in fit_prepared([*of(3, text="t" * 50_000, error=error), PreparedCall(arguments={})]):
        share = 250_000 // 8
        if call.text is None:
            assert (call.error, call.arguments) == (None, {})
            continue
        assert call.text.startswith("t" * (share - share // 8))  # a tenth is left out at a time
        assert len(call.text) < share + 100
        assert call.error is not None
        assert call.error.message.startswith("m" * (share // 2 - share // 16))
        assert len(call.error.message) < share // 2 + 100


def test_an_answer_that_is_too_large_loses_its_providers_items() -> None:
    """What providers did themselves is of no use without the items, which the next request would have."""
    hosted = [HostedCall(id="h", name="search", arguments="{}", status="completed")]
    citations = [Citation(url="http://x", title="t", start=0, end=1)]
    small = answer_of(text="x", hosted_calls=hosted, citations=citations)
    small.message.provider_data = {"items": "y" * 10}
    assert fit_answer(small) == small
    large = answer_of(text="x", hosted_calls=hosted, citations=citations)
    large.message.provider_data = {"items": "y" * size_limits.ANSWER_BYTES}
    fitted = fit_answer(large)
    assert (fitted.message.provider_data, fitted.hosted_calls, fitted.citations, fitted.message.text) == (
        None,
        [],
        [],
        "x",
    )


def test_the_text_of_a_rejection_is_cut() -> None:
    error = ErrorInfo(kind="guardrail", message="no")
    fitted = fit_answer(answer_of(rejected=RejectedAnswer(text="x" * 300_000, error=error)))
    assert fitted.rejected is not None
    assert 220_000 < len(fitted.rejected.text) < 250_100
    assert fit_answer(answer_of()).rejected is None


def test_the_limits_of_all_parts_together_fit_into_a_result() -> None:
    """Temporal refuses 2 MB: the text, arguments twice, the repairs, feedback, and the provider's items."""
    parts = size_limits.TEXT_BYTES + 2 * MOST + size_limits.REPAIRS_BYTES + size_limits.FEEDBACK_BYTES
    alone = size_limits.ALONE_BYTES + size_limits.PROVIDER_BYTES + size_limits.FEEDBACK_BYTES
    typed = 2 * MOST + size_limits.PROVIDER_BYTES + size_limits.FEEDBACK_BYTES
    assert max(parts, alone, typed) < size_limits.ANSWER_BYTES < 2_000_000
    assert size_limits.MOST_CALLS + 1 <= 128  # OpenAI's most


class Note(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("size", "output", "status", "kept"),
    [
        (100_001, None, "completed", 100_001),
        (size_limits.ALONE_BYTES - 2, None, "completed", size_limits.ALONE_BYTES - 2),
        (size_limits.ALONE_BYTES, None, "truncated", size_limits.ALONE_BYTES * 8 // 10),
        (MOST - 2, ToolStrategy(Note, or_text=True), "completed", MOST - 2),
        (MOST, ToolStrategy(Note, or_text=True), "truncated", MOST * 8 // 10),
    ],
)
async def test_a_text_is_the_output_whole_or_cut_off(size: int, output: Any, status: str, kept: int) -> None:
    """Nothing that is left out is `completed`."""
    text = ("".join(f"word {n} " for n in range(100_000)) * 2)[:size]
    agent = Agent(name="a", model="scripted:m", output=output)
    run = await run_agent(agent, "Go.", model=ScriptedModel(Say(text)))
    assert run.result is not None
    assert (run.result.status, len(text)) == (status, size)
    assert run.messages[-1].text.startswith(text[:kept])
    if status == "completed":
        assert run.output == run.messages[-1].text == text
