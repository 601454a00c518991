"""The JSON between workflow, activities and clients: what is read back, what is refused as a result, and where limits are."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan.errors import InvalidRunInputError
from mulligan.schema.json_limits import MOST_DEPTH
from mulligan.values import (
    AssistantMessage,
    ErrorInfo,
    Message,
    Step,
    StepCall,
    StepResult,
    ToolCall,
    ToolMessage,
    Usage,
)
from mulligan.wire import case as case_module
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.background import ResponseState
from mulligan.wire.case import CaseError, parse_case
from mulligan.wire.checked_result import MOST_COUNT, are_between, are_tokens
from mulligan.wire.code_mode import AskedCall
from mulligan.wire.compressed_input import decompress_input
from mulligan.wire.model_call import AcceptedOutput, ModelAnswer, PreparedCall
from mulligan.wire.recorded_outcome import records_of
from mulligan.wire.shorten import shorten
from mulligan.wire.tool_call import tool_message
from mulligan.wire.ui_summary import task_of, ui_summary

CALL = ToolCall(id="c", name="find", arguments='{"x": 1}')


@pytest.mark.parametrize(
    ("values", "are"),
    [
        ([1], True),
        ([3], True),
        ([0], False),
        ([4], False),
        ([None], True),
        ([2, 4], False),
        ([float("nan")], False),
        ([], True),
    ],
)
def test_numbers_are_between_two_others_with_these(values: list[float | None], are: bool) -> None:
    assert are_between(1, 3, values) is are


def test_as_many_tokens_as_can_be_counted_are_tokens() -> None:
    assert are_tokens(Usage(input_tokens=MOST_COUNT, output_tokens=0))
    assert not are_tokens(Usage(input_tokens=MOST_COUNT + 1, output_tokens=0))
    assert not are_tokens(Usage(input_tokens=0, output_tokens=-1))


def answer(*calls: ToolCall, prepared: Any = None, text: str = "", **fields: Any) -> ModelAnswer:
    made = [PreparedCall(arguments=json.loads(each.arguments)) for each in calls] if prepared is None else prepared
    message = AssistantMessage(role="assistant", text=text, tool_calls=[*calls])
    return ModelAnswer(message=message, prepared=made, usage=fields.pop("usage", Usage()), **fields)


def test_an_answer_is_written_with_its_arguments_once_and_read_back() -> None:
    """Of a call whose text cannot be written from its value, both are there."""
    odd = ToolCall(id="d", name="find", arguments="{'x': 2}")
    prepared = [PreparedCall(arguments={"x": 1}), PreparedCall(arguments={"x": 2})]
    for made in (answer(CALL), answer(CALL, odd, prepared=prepared), answer(text="Done.")):
        written = made.model_dump(mode="json")
        assert "role" not in written["message"]
        assert ModelAnswer.model_validate(written) == made
        assert json.dumps(written).count('"x": 1') <= 1
    assert "prepared" not in answer(CALL).model_dump(mode="json")
    assert "arguments" not in answer(CALL).model_dump(mode="json")["message"]["tool_calls"][0]


@pytest.mark.parametrize(
    "data", [{}, {"message": 1}, {"message": {"tool_calls": 1}}, {"message": {"tool_calls": [1]}}, 1]
)
def test_what_is_no_answer_is_a_fault_of_its_form(data: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        ModelAnswer.model_validate(data)


def test_an_answer_whose_entries_are_not_those_of_its_calls_is_of_no_use() -> None:
    assert answer(CALL, prepared=[]).fault() == "it does not say for each call what came of it"
    assert answer(CALL).fault() is None


OTHER = CALL.model_copy(update={"id": "d"})
ERROR = ErrorInfo(kind="invalid_json", message="No.")


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (answer(CALL, OTHER), None),
        (answer(CALL, CALL), "two calls have the same id, or one has none"),
        (answer(CALL.model_copy(update={"id": ""})), "two calls have the same id, or one has none"),
        (answer(CALL, usage=Usage(input_tokens=-1, output_tokens=0)), "its usage is no number of tokens"),
        (answer(CALL, usage_of_repairs={"m": Usage(input_tokens=-1)}), "its usage is no number of tokens"),
        (answer(CALL, context_tokens=-1), "its usage is no number of tokens"),
        (answer(CALL, prepared=[PreparedCall()]), "a call that it calls valid has no arguments"),
        (answer(CALL, prepared=[PreparedCall(error=ERROR)]), None),
        (answer(text="{}", output=AcceptedOutput(type="t", is_verbatim=True)), None),
        (answer(text="{", output=AcceptedOutput(type="t", is_verbatim=True)), "its output is a text that is not JSON"),
        (answer(text="[" * 100_000, output=AcceptedOutput(type="t", is_verbatim=True)), "its output is a text that is not JSON"),
        (answer(text="{", output=AcceptedOutput(type="t", value=1)), None),
        (answer(CALL, output=AcceptedOutput(type="t", is_verbatim=True, call=0)), None),
        (answer(CALL, output=AcceptedOutput(type="t", is_verbatim=True, call=1)), "its output is that of a call which it does not have"),
        (answer(CALL, output=AcceptedOutput(type="t", is_verbatim=True, call=-1)), "its output is that of a call which it does not have"),
    ],
)  # fmt: skip
def test_an_answer_of_another_program_is_used_only_if_it_is_consistent(made: ModelAnswer, fault: str | None) -> None:
    assert made.fault() == fault


@pytest.mark.parametrize(
    ("status", "has_answer", "fits"),
    [("completed", True, True), ("completed", False, False), ("running", True, False), ("running", False, True), ("failed", False, True)],
)  # fmt: skip
def test_a_response_has_an_answer_exactly_if_it_is_completed(status: Any, has_answer: bool, fits: bool) -> None:
    state = ResponseState(status=status, answer=answer(text="Done.") if has_answer else None)
    assert (state.fault() is None) is fits
    broken = ResponseState(status="completed", answer=answer(CALL, prepared=[]))
    assert broken.fault() == "it does not say for each call what came of it"


@pytest.mark.parametrize("arguments", ['{"x": 1}', "{'x': 1}", '{"x":1}'])
def test_a_call_of_a_script_is_read_back(arguments: str) -> None:
    made = AskedCall(name="find", arguments=arguments, prepared=PreparedCall(arguments={"x": 1}, role="chief"))
    written = made.model_dump(mode="json")
    assert AskedCall.model_validate(written) == made
    assert written["prepared"]["role"] == "chief"
    plain = AskedCall(name="find", arguments='{"x": 1}', prepared=PreparedCall(arguments={"x": 1}))
    assert "prepared" not in plain.model_dump(mode="json")
    assert AskedCall.model_validate(plain.model_dump(mode="json")) == plain
    assert AskedCall.model_validate(plain) is plain


def test_the_message_of_a_result_is_that_of_its_call() -> None:
    message = tool_message(CALL, "7", ERROR)
    assert message == ToolMessage(role="tool", call_id="c", name="find", text="7", error=ERROR)


def test_an_agent_that_takes_over_has_the_limits_of_the_run_and_its_own_tools() -> None:
    tool: Any = SimpleNamespace(agent=None)

    class Below(SimpleNamespace):
        def model_copy(self, update: dict[str, Any]) -> Any:
            return SimpleNamespace(**{**vars(self), **update})

    build = cast(Any, AgentFacts).model_construct
    tools = {"find": tool, "ask": Below(agent="b", max_depth=9)}
    run = build(**_limits(1), prices={"m": 1, "n": 1}, tools={})
    other = build(**_limits(2), prices={"m": 2}, tools=tools, model="own")
    facts: Any = other.with_limits_of(run, 3)
    assert {name: getattr(facts, name) for name in _limits(1)} == _limits(1)
    assert (facts.model, facts.prices) == ("own", {"m": 2, "n": 1})
    assert facts.tools["find"] is tool
    assert (facts.tools["ask"].agent, facts.tools["ask"].max_depth) == ("b", 3)


def _limits(of: int) -> dict[str, Any]:
    names = (
        "max_steps",
        "max_repeats",
        "max_total_tokens",
        "max_sub_runs",
        "max_cost",
        "carry_bytes",
        "search_attributes",
    )
    return dict.fromkeys(names, of)


def test_an_input_may_be_nested_so_deep_and_no_deeper() -> None:
    deepest = b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    assert decompress_input(deepest) == deepest
    with pytest.raises(InvalidRunInputError, match=f"more than {MOST_DEPTH} levels"):
        decompress_input(b"[" + deepest + b"]")


def test_a_summary_of_wide_characters_is_as_long_as_it_may_be() -> None:
    summary = ui_summary("世" * 500)
    assert 40 < len(summary) < 60
    assert (summary[0], summary[-1]) == ("世", "…")
    assert task_of(cast(Any, SimpleNamespace(prompt="\n\n Go. \nNow.", messages=[]))) == "Go."


def test_values_that_are_no_texts_are_shortened_as_they_are() -> None:
    value = {"text": "x" * 5_000, "number": 7, "flag": True, "none": None, "list": [1, "y"]}
    assert shorten(value, 1_000) == {**value, "text": "x" * 200 + "… (4800 more characters)"}
    assert shorten({"x" * 5_000: 1, "b": 2}, 1_000) == {"x" * 200 + "… (4800 more characters)": 1, "b": 2}


def test_the_records_of_a_run_are_by_call_and_in_its_order() -> None:
    """A call that was never valid has none; one whose result is not there yet has None."""

    def call(call_id: str, arguments: Any, text: str | None = None) -> StepCall:
        result = None if text is None else StepResult(text=text)
        return StepCall(id=call_id, name="find", raw_arguments="{}", arguments=arguments, result=result)

    calls = [call("a", {"x": 1}, "cut"), call("b", {"x": 1}, "two"), call("c", None, "no"), call("d", {"x": 2})]
    steps = [Step(step=1, text="", model="m", usage=Usage(), tool_calls=calls)]
    messages: list[Message] = [
        AssistantMessage(role="assistant", text="", tool_calls=[CALL]),
        ToolMessage(role="tool", call_id="a", name="find", text="whole"),
    ]
    records = records_of(steps, messages)
    texts = [[outcome and outcome.text for outcome in each] for each in records.values()]
    assert texts == [["whole", "two"], [None]]


def test_a_case_that_is_none_is_refused_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.dumps({"version": 1, "id": "r", "run_id": "x", "settings": {"model": 1}}).encode()
    with pytest.raises(
        CaseError, match=r"^file is not a case: 'agent': it is missing|^file is not a case: '[a-z.]+': "
    ):
        parse_case(case, "file")
    monkeypatch.setattr(case_module, "CASE_BYTES", len(case))
    with pytest.raises(CaseError, match="is not a case"):
        parse_case(case, "file")
    with pytest.raises(CaseError, match=f"^file has {len(case) + 1:,} bytes; a case has {len(case):,} at most"):
        parse_case(case + b" ", "file")
    for empty in (b"", b" \n"):
        with pytest.raises(CaseError, match=r"^file is empty\."):
            parse_case(empty, "file")
    with pytest.raises(CaseError, match="it must be one JSON object"):
        parse_case(b"[]", "file")
    with pytest.raises(CaseError, match="a case of version 2"):
        parse_case(b'{"version": 2}', "file")
