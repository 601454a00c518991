"""Structured output, one row each: the answers of the model, the feedback, and the output of the run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mulligan import (
    MultipleStructuredOutputsError,
    StructuredOutputValidationError,
    output_of,
)
from tests.promise.recovery_matrix import Row, observe
from tests.support.lab import Lab
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN
from tests.support.structured_output_agents import Exchange, Note, Refund

GOOD = '{"order": 7, "amount": 12.5}'
REFUND = {"order": 7, "amount": 12.5, "reason": "none given"}
EXCHANGE = '{"order": 7, "instead": "a lamp"}'


def calls(*named: tuple[str, str], text: str | None = None) -> Turn:
    return Turn(text=text, calls=[(name, raw, None) for name, raw in named])


def row(
    name: str,
    agent: str,
    turns: list[Turn],
    output: Any,
    kinds: tuple[str, ...] = (),
    told: tuple[str, ...] = (),
    **more: Any,
) -> Row:
    return Row(name, agent=agent, turns=turns, output=output, kinds=kinds, told=told, **more)


ROWS = [
    row("a model by a call", "refund", [calls(("Refund", GOOD))], REFUND),
    row("a dataclass of a union", "either", [calls(("Exchange", EXCHANGE))], {"order": 7, "instead": "a lamp"}),
    row("a TypedDict", "note", [calls(("Note", '{"text": "a", "tags": []}'))], {"text": "a", "tags": []}),
    row("a JSON schema", "plan", [calls(("Plan", '{"steps": ["a"]}'))], {"steps": ["a"]}),
    row("a list", "numbers", [calls(("list", '{"value": [1, 2]}'))], [1, 2]),
    row("a list that is empty", "numbers", [calls(("list", '{"value": []}'))], []),
    row("a bare list", "numbers", [calls(("list", "[1, 2]"))], [1, 2], repairs=("bare_value",)),
    row("nothing, where that is an answer", "maybe", [calls(("output", '{"value": null}'))], None),
    row("one of a list of JSON schemas", "listed", [calls(("Wish", '{"steps": ["a"]}'))], {"steps": ["a"]}),
    row("a text, where that is an output too", "listed", [Turn(text="What do you wish?")], "What do you wish?"),
    row("written by the provider", "written", [Turn(text=GOOD)], REFUND),
    row("written by the provider that takes schemas", "refund", [Turn(text=GOOD)], REFUND, api="openai"),
    row("written, of a union", "written_either", [Turn(text='{"value": ' + EXCHANGE + "}")], json.loads(EXCHANGE)),
    row(
        "written, by a JSON schema",
        "written_plan",
        [Turn(text='{"steps": ["a"], "urgent": true}')],
        {"steps": ["a"], "urgent": True},
    ),
    row("written in a fence", "written", [Turn(text=f"```json\n{GOOD}\n```")], REFUND),
    row(
        "a call, repaired",
        "refund",
        [calls(("Refund", "{'order': 7, 'amount': '12.5',}"))],
        REFUND,
        repairs=("json:single_quotes+trailing_commas", "schema:number"),
    ),
    row(
        "not valid, then valid",
        "refund",
        [calls(("Refund", '{"order": 7, "amount": -1}')), calls(("Refund", GOOD))],
        REFUND,
        ("invalid_output",),
        ("`amount`: should be greater than 0",),
    ),
    row(
        "cut off in a string",
        "refund",
        [calls(("Refund", '{"order": 7, "amount": 1, "reason": "be')), calls(("Refund", GOOD))],
        REFUND,
        ("invalid_output",),
        ("in the middle of a string",),
    ),
    row(
        "cut off in a list",
        "plan",
        [calls(("Plan", '{"steps": ["a", ')), calls(("Plan", '{"steps": ["a", "b"]}'))],
        {"steps": ["a", "b"]},
        ("invalid_output",),
        ("right after a ','",),
    ),
    row(
        "cut off between fields, written by the provider",
        "written_plan",
        [Turn(text='{"steps": ["a"]'), Turn(text='{"steps": ["a"], "urgent": true}')],
        {"steps": ["a"], "urgent": True},
        ("invalid_output",),
        ("before their last brackets are closed",),
    ),
    row(
        "cut off by length",
        "refund",
        [Turn(calls=[("Refund", '{"order": 7, "amo', None)], finish_reason="length"), calls(("Refund", GOOD))],
        REFUND,
        ("truncated_call",),
        ("cut off by the length limit",),
    ),
    row(
        "against the JSON schema",
        "plan",
        [calls(("Plan", '{"steps": [], "x": 1}')), calls(("Plan", '{"steps": ["a"]}'))],
        {"steps": ["a"]},
        ("invalid_output",),
        ("`steps`",),
    ),
    row(
        "two of a union",
        "either",
        [calls(("Refund", GOOD), ("Exchange", EXCHANGE)), calls(("Refund", GOOD))],
        REFUND,
        ("multiple_outputs", "multiple_outputs"),
        ("2 outputs in one step (`Refund`, `Exchange`)", "Give exactly one"),
    ),
    row(
        "together with an ordinary call",
        "refund",
        [calls(("now", "{}"), ("Refund", GOOD)), calls(("Refund", GOOD))],
        REFUND,
        ("premature_output",),
        ("came together with other calls",),
        ran=1,
    ),
    row(
        "invalid, together with an ordinary call",
        "refund",
        [calls(("Refund", "{}"), ("now", "{}")), calls(("Refund", GOOD))],
        REFUND,
        ("premature_output",),
        ("came together with other calls",),
        ran=1,
    ),
    row(
        "two, together with an ordinary call that fails",
        "either",
        [calls(("Refund", GOOD), ("explode", "{}"), ("Exchange", "{}")), calls(("Exchange", EXCHANGE))],
        json.loads(EXCHANGE),
        ("multiple_outputs", "tool_exception", "multiple_outputs"),
        ("2 outputs", "raised ZeroDivisionError", "2 outputs"),
        ran=1,
    ),
    row("beside text", "refund", [calls(("Refund", GOOD), text="Here it is.")], REFUND),
    row(
        "plain text",
        "refund",
        [Turn(text="You get 12.50 back."), calls(("Refund", GOOD))],
        REFUND,
        ("missing_output",),
        ("by calling `Refund`",),
    ),
    row(
        "nothing at all",
        "either",
        [Turn(text=""), calls(("Refund", GOOD))],
        REFUND,
        ("missing_output",),
        ("Your answer has no text and no call, but your final answer must be given by calling `Refund` or `Exchange`",),
    ),
    row(
        "prose for a schema",
        "written",
        [Turn(text="12.50"), Turn(text=GOOD)],
        REFUND,
        ("missing_output",),
        ("JSON alone",),
    ),
    row(
        "a schema not kept to",
        "written",
        [Turn(text='{"order": 13, "amount": 1}'), Turn(text=GOOD)],
        REFUND,
        ("invalid_output",),
        ("order 13 is cursed",),
    ),
    row(
        "written too early",
        "written",
        [calls(("now", "{}"), text=GOOD), Turn(text=GOOD)],
        REFUND,
        ("premature_output",),
        ("came together with other calls",),
        ran=1,
    ),
    row("talk beside a call", "written", [calls(("now", "{}"), text="Let me see."), Turn(text=GOOD)], REFUND, ran=1),
    row(
        "the policy of the strategy",
        "own_text",
        [calls(("Refund", "{}")), calls(("Refund", GOOD))],
        REFUND,
        ("invalid_output",),
        ("Mind the amount.",),
    ),
    row(
        "a policy by type",
        "by_type",
        [calls(("Refund", "{}")), calls(("Refund", GOOD))],
        REFUND,
        ("invalid_output",),
        ("`order`: is required",),
    ),
    row(
        "a policy by function",
        "by_function",
        [Turn(text="no"), calls(("Refund", GOOD))],
        REFUND,
        ("missing_output",),
        ("StructuredOutputValidationError missing_output: try again",),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_each_mistake_in_the_output_gets_one_feedback_and_the_run_returns_a_valid_output(
    lab: Lab, row: Row
) -> None:
    """Each mistake is counted and has one ERROR span."""
    ran = await observe(lab, row, row.api)
    assert ran.error is None
    assert ran.result["status"] == "completed"
    assert ran.result["output"] == row.output
    told = [call["result"]["text"] for call in ran.calls if call["result"]["error"]] + ran.rejected
    failures = [call["result"]["error"]["kind"] for call in ran.calls if call["result"]["error"]]
    failures += [step["error"]["kind"] for step in ran.steps if step["error"]]
    assert tuple(failures) == row.kinds
    for text, part in zip(told, row.told, strict=True):
        assert part in text
    assert len(RAN[ran.id]) == row.ran
    assert ran.result["recovered_failures"] == len(row.kinds)
    assert tuple(repair["by"] for call in ran.calls for repair in call["repairs"]) == row.repairs
    recovered = [span for span in ran.spans_of("ai.toolCall") if span.attributes["mulligan.recovered"]]
    assert sorted(span.attributes["error.type"] for span in recovered) == sorted(row.kinds)
    assert all(span.status == "ERROR" and span.attributes["ai.toolCall.name"] for span in recovered)
    assert ran.result["tool_calls"] == len(ran.calls)


async def test_output_of_returns_the_python_object_that_the_model_chose(lab: Lab) -> None:
    """Also for a union."""
    first = await lab.run([calls(("Exchange", EXCHANGE))], agent="either")
    assert output_of(first.result, Refund | Exchange) == Exchange(order=7, instead="a lamp")
    assert first.result["output_type"] == "Exchange"
    second = await lab.run([calls(("Note", '{"text": "a", "tags": ["b"]}'))], agent="note")
    assert output_of(second.result, Note) == {"text": "a", "tags": ["b"]}
    text = await lab.run([Turn(text="Say more.")], agent="listed")
    assert (text.result["output_type"], text.result["status"]) == ("str", "completed")
    third = await lab.run([Turn(text="no")] * 2, agent="refund", max_steps=2)
    assert (third.result["status"], third.result["output"]) == ("max_steps", None)
    with pytest.raises(StructuredOutputValidationError, match="ended as 'max_steps'"):
        output_of(third.result, Refund)


@pytest.mark.parametrize(
    ("agent", "turn", "error", "fields"),
    [
        (
            "strict_output",
            calls(("Refund", "{}")),
            StructuredOutputValidationError,
            {"kind": "invalid_output", "tool_name": "Refund"},
        ),
        ("strict_output", Turn(text="no"), StructuredOutputValidationError, {"kind": "missing_output"}),
        (
            "strict_output",
            calls(("Refund", GOOD), ("Exchange", EXCHANGE)),
            MultipleStructuredOutputsError,
            {"tool_names": ["Refund", "Exchange"]},
        ),
        ("by_type", Turn(text="no"), StructuredOutputValidationError, {"kind": "missing_output"}),
    ],
    ids=["invalid", "missing", "multiple", "another type"],
)
async def test_without_handle_errors_a_wrong_output_fails_the_run_with_the_typed_error(
    lab: Lab, agent: str, turn: Turn, error: type, fields: dict[str, Any]
) -> None:
    """The error contains the message of the model; the span has `recovered` false."""
    ran = await lab.run([turn, calls(("Refund", GOOD))], agent=agent)
    assert type(ran.error) is error
    assert {name: getattr(ran.error, name) for name in fields} == fields
    assert ran.error.model_message["role"] == "assistant"  # type: ignore[union-attr]
    assert {span.attributes["mulligan.recovered"] for span in ran.spans_of("ai.toolCall")} == {False}
    assert len([s for s in ran.spans_of("ai.toolCall") if s.status == "ERROR"]) == max(1, len(turn.calls))


async def test_a_truncated_or_refused_output_is_a_status_and_its_text_is_kept(lab: Lab) -> None:
    """Never `completed`."""
    for turn, status, output in [
        (Turn(text='{"order": 7', finish_reason="length"), "truncated", '{"order": 7'),
        (Turn(refusal="I will not."), "refused", "I will not."),
    ]:
        for agent in ("written", "refund"):
            ran = await lab.run([turn], agent=agent)
            assert (ran.result["status"], ran.result["output"]) == (status, output)


async def test_the_provider_gets_output_tools_or_a_strict_schema(lab: Lab) -> None:
    """The schema is strict if it can be expressed so."""
    ran = await lab.run([calls(("Refund", GOOD))], agent="noted")
    names = [each["function"]["name"] for each in ran.requests[0].json["tools"]]
    assert names[-1] == "Refund"
    assert "response_format" not in ran.requests[0].json
    assert ran.calls[0]["result"]["text"] == "Refund noted."
    written = await lab.run([Turn(text=GOOD)], agent="written")
    sent = written.requests[0].json["response_format"]["json_schema"]
    assert (sent["name"], sent["strict"], sent["schema"]["required"]) == ("Refund", True, ["order", "amount", "reason"])
    plan = await lab.run([Turn(text='{"steps": ["a"]}')], agent="plan", api="openai")
    assert plan.requests[0].json["text"]["format"]["strict"] is False
