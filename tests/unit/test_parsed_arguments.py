"""A call's arguments are parsed once, and history has them once: as a value, from which the text is written where it can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError, field_validator

from mulligan import Agent, Call, Say, tool
from mulligan.activities import model_attempt
from mulligan.activities.answers.parsed_arguments import LONG, ParsedArguments
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import AssistantMessage, ErrorInfo, ToolCall, Usage
from mulligan.wire.model_call import ModelAnswer, PreparedCall

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)
SEPARATORS = {"compact": (",", ":"), "spaced": (", ", ": "), "wide": (" ,  ", " : ")}


def answer(written: str, **prepared: Any) -> ModelAnswer:
    call = ToolCall(id="c", name="n", arguments=written)
    message = AssistantMessage(role="assistant", tool_calls=[call])
    return ModelAnswer(message=message, prepared=[PreparedCall(**prepared)], usage=Usage())


@settings(derandomize=True, deadline=None, max_examples=300)
@given(OBJECTS, st.sampled_from(sorted(SEPARATORS)), st.booleans())
def test_history_gives_back_the_very_text_and_value(value: dict[str, Any], spelling: str, is_ascii: bool) -> None:
    text = json.dumps(value, separators=SEPARATORS[spelling], ensure_ascii=is_ascii)
    parsed = ParsedArguments.of(text)
    assert isinstance(parsed.value, dict)
    sent = answer(text, arguments=parsed.value)
    received = ModelAnswer.model_validate_json(sent.model_dump_json())
    if "\\ud" not in text:
        assert received.message == sent.message
    assert json.dumps(received.prepared[0].arguments) == json.dumps(parsed.value)
    assert received.fault() is None
    assert received.model_dump_json() == sent.model_dump_json()


@pytest.mark.parametrize("spelling", ["compact", "spaced"])
def test_history_has_the_arguments_of_a_call_once(spelling: str) -> None:
    value = {"city": "Zürich", "days": [1, 2.5], "a": {"b": None}}
    text = json.dumps(value, separators=SEPARATORS[spelling], ensure_ascii=False)
    data = json.loads(answer(text, arguments=value).model_dump_json())
    assert data["message"]["tool_calls"] == [{"id": "c", "name": "n", spelling: value}]
    assert "prepared" not in data
    repaired = json.loads(answer(text, arguments=value, raw="{'city'").model_dump_json())
    assert repaired["message"]["tool_calls"] == [{"id": "c", "name": "n", spelling: value}]
    assert repaired["prepared"] == [{"raw": "{'city'"}]


def test_a_text_that_cannot_be_written_from_the_value_stands_beside_it() -> None:
    for text, value in [('{"n": 1e2}', {"n": 100.0}), ('{ "n": 1 }', {"n": 1}), ('{"n": 1, "n": 2}', {"n": 2})]:
        data = json.loads(answer(text, arguments=value).model_dump_json())
        assert data["message"]["tool_calls"][0]["arguments"] == text
        assert data["prepared"] == [{"arguments": value}]
    failed = json.loads(answer("{", text="no", error=ErrorInfo(kind="invalid_json", message="m")).model_dump_json())
    assert failed["message"]["tool_calls"][0]["arguments"] == "{"


@pytest.mark.parametrize(
    "call",
    ['"compact": {"a": NaN}', '"spaced": {"a": 1e999}', f'"compact": {"[" * 5_000}{"]" * 5_000}', '"other": {}'],
)
def test_an_answer_whose_arguments_have_no_text_is_refused(call: str) -> None:
    data = f'{{"message": {{"role": "assistant", "tool_calls": [{{"id": "c", "name": "n", {call}}}]}}, "usage": {{}}}}'
    with pytest.raises(ValidationError):
        ModelAnswer.model_validate_json(data)


def test_a_valid_call_without_a_value_is_a_fault_of_the_answer() -> None:
    assert answer("{}").fault() == "a call that it calls valid has no arguments"
    assert answer("{}", arguments={}).fault() is None


def test_the_key_of_arguments_does_not_depend_on_white_space_the_order_of_fields_and_the_spelling_of_numbers() -> None:
    same = ['{"a": 1, "b": [2]}', '{"b":[2],\n"a":1}', '{"a": 1.0, "b": [2e0]}']
    assert len({ParsedArguments.of(text).key for text in same}) == 1
    assert len({ParsedArguments.of(text).key for text in ("{a  b", "{a b", "{a\nb")}) == 1
    others = ['{"a": 1.5, "b": [2]}', '{"a": "1", "b": [2]}', '{"a": true, "b": [2]}', "{}", "", "{a b", "null"]
    assert len({ParsedArguments.of(text).key for text in [*same, *others]}) == len(others) + 1


def test_a_text_is_legal_if_it_is_an_object_that_parsing_does_not_change() -> None:
    for text in ("{}", '{"a": "\\ud83d\\ude00"}', '{"a": "\\\\ud800"}'):
        assert ParsedArguments.of(text).is_legal, text
    for text in ("", "[]", "{", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1e999}'):
        assert not ParsedArguments.of(text).is_legal, text


VALIDATED: list[int] = []


class Parcel(BaseModel):
    weight: int

    @field_validator("weight")
    @classmethod
    def counts(cls, value: int) -> int:
        VALIDATED.append(value)
        return value


@tool
def ship(parcel: Parcel, note: str = "") -> str:
    """Ship it."""
    return f"{parcel.weight} {len(note)}"


async def test_each_call_of_an_answer_is_parsed_once_by_activities_and_workflow_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever comes of it: a call that runs, a long one, one that fails. Types validate it when it is inspected and run."""
    texts = [
        '{"parcel": {"weight": 1}}',
        '{"parcel":{"weight":2}}',
        '{"parcel": {"weight": 3}, "note": "' + "x" * LONG + '"}',
        '{"parcel": 4}',
    ]
    parsed: list[str] = []
    loads = json.loads

    def counted(text: Any, **options: Any) -> Any:
        parsed.extend([text] if text in texts else [])
        return loads(text, **options)

    VALIDATED.clear()
    for name in ("input_messages", "output_messages"):
        monkeypatch.setattr(model_attempt, name, lambda *_: "")  # content on spans has arguments as values: for people
    monkeypatch.setattr(json, "loads", counted)
    agent = Agent(name="a", model="openai:m", tools=[ship])
    run = await run_agent(agent, "Go.", model=ScriptedModel(Say(calls=[Call("ship", text) for text in texts]), "done"))
    assert [call.result and call.result.text for call in run.calls][:3] == ["1 0", "2 0", f"3 {LONG}"]
    assert run.calls[3].result is not None
    assert run.calls[3].result.error is not None
    assert sorted(parsed) == sorted(texts)
    assert sorted(VALIDATED) == [1, 1, 2, 2, 3, 3]
