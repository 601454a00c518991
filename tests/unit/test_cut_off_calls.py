"""A call that was cut off never runs with other arguments than those that the model was about to write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from mulligan import Agent, Call, InvalidToolInput, Say, ToolCallError, tool
from mulligan.activities.answers.prepare_call import ValidArguments
from mulligan.schema.json_schema import property_names
from mulligan.testing import ScriptedModel, run_agent
from tests.support.cut_off_calls import WrittenCall, check_each_cut, written_calls
from tests.support.examples import examples
from tests.support.prepare_one_call import look, say


@settings(derandomize=True, deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(written_calls())
def test_a_call_cut_off_anywhere_has_all_of_its_arguments_or_none(call: WrittenCall) -> None:
    asyncio.run(check_each_cut(call))


@tool
def book(flight: str, passengers: list[dict[str, str]], bags: int = 0, notes: list[str] | None = None) -> None:
    """Book."""


ONE = '{"flight": "HAT1", "passengers": [{"first": "Omar"}]'


@pytest.mark.parametrize(
    "raw",
    [
        '{"flight": "HAT1", "passengers": [{"first": "Omar"',
        '{"flight": "HAT1", "passengers": [{"first": "Omar",',
        '{"flight": "HAT1", "passengers": [{"first": "Omar"}, ',
        '{"flight": "HAT1", "passengers": [{"first": "Omar"}}',
        ONE,
        ONE + ",",
        ONE + ', "bags": 1',
        ONE + ', "notes": []',
        ONE + ', "notes": [], "bags": 1',
        ONE + ', "bags": 1, "notes": ["a"',
        ONE + ', "bags": 1, "notes": null',
        ONE + ', "bags": 1, "notes": ["a"],',
        ONE + ', "bags": 1, "notes": ["a"], "notes": ["b"]',
    ],
)
async def test_what_may_be_missing_is_asked_for(raw: str) -> None:
    """A fixer gets the text, and no value that was made of it."""
    given_to_fixer: list[InvalidToolInput] = []
    agent = Agent(name="a", model="scripted:x", tools=[book], repair=given_to_fixer.append)
    error = await look("book", raw, agent)
    assert isinstance(error, ToolCallError)
    assert (error.kind, [each.arguments for each in given_to_fixer]) == ("invalid_json", [raw])


async def test_the_last_brace_is_added_after_the_last_property() -> None:
    done = await look("book", ONE + ', "bags": 1, "notes": ["a"]', Agent(name="a", model="scripted:x", tools=[book]))
    assert isinstance(done, ValidArguments)
    assert [repair.by for repair in done.repairs] == ["json:missing_closers"]
    assert done.arguments == {"flight": "HAT1", "passengers": [{"first": "Omar"}], "bags": 1, "notes": ["a"]}


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ('{"text": NaN}', "invalid_json"),
        ('{"text": 1e999}', "invalid_json"),
        ('{"text": ' + "1" * 5000 + "}", "invalid_json"),
        ('{"text": ' + "[" * 200 + "]" * 200 + "}", "invalid_json"),
        ('{"text": 1}', "invalid_arguments"),
        ('{"text": NaN', "truncated_call"),
        ('{"text": ' + "[" * 200 + "]" * 200, "truncated_call"),
        ('{"text": "a', "truncated_call"),
        ("NaN", "truncated_call"),
        ('["a"]', "truncated_call"),
    ],
)
async def test_an_object_that_was_written_whole_before_the_length_limit_was_not_cut_off(raw: str, kind: str) -> None:
    """The model is told what is wrong with it, and not to write less."""
    agent = Agent(name="a", model="scripted:test", tools=[say])
    run = await run_agent(
        agent, "Go.", model=ScriptedModel(Say(calls=[Call("say", raw)], finish_reason="length"), "done")
    )
    [call] = run.calls
    assert call.result is not None
    assert call.result.error is not None
    assert call.result.error.kind == kind


A_AND_B = {"properties": {"a": {}, "b": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (A_AND_B, {"a", "b"}),
        (A_AND_B | {"additionalProperties": False}, {"a", "b"}),
        (A_AND_B | {"required": ["c"]}, {"a", "b", "c"}),
        (A_AND_B | {"additionalProperties": True}, set()),
        (A_AND_B | {"additionalProperties": {"type": "string"}}, set()),
        (A_AND_B | {"unevaluatedProperties": True}, set()),
        (A_AND_B | {"patternProperties": {"^x": {}}}, set()),
        (A_AND_B | {"allOf": [{"properties": {"c": {}}}]}, set()),
        (A_AND_B | {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]}, set()),
        (A_AND_B | {"if": {"required": ["b"]}, "then": {"properties": {"c": {}}}}, set()),
        ({"$ref": "#/$defs/x", "$defs": {"x": A_AND_B}}, set()),
        ({"type": "object", "properties": {}}, set()),
        ({"type": "object"}, set()),
    ],
)
def test_the_names_of_a_schema_are_known_only_if_it_says_all_of_them(schema: dict[str, Any], names: set[str]) -> None:
    assert property_names(schema) == names
