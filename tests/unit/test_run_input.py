"""The input of a run is read, or refused with a sentence that says what to change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from mulligan import AssistantMessage, InvalidRunInputError, RunInput, ToolMessage, UserMessage
from mulligan.run_input import NOT_WRITTEN, make_run_input, parse_run_input
from mulligan.wire.start_input import Carried, Origin, StartInput, parse_start_input

TRACE = f"00-{1:032x}-{2:016x}-01"


def refusal_of(data: Any) -> str:
    """The error message for an invalid input."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(InvalidRunInputError) as raised:
        parse_run_input(raw)
    return raised.value.message


def with_prompt(**fields: Any) -> dict[str, Any]:
    return {"agent": "support", "prompt": "Hi.", **fields}


def with_messages(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"agent": "support", "messages": list(messages), **fields}


def user(text: str = "Hi.") -> dict[str, Any]:
    return {"role": "user", "text": text}


def asks(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": each, "name": "look", "arguments": "{}"} for each in ids]}


def found(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "call_id": call_id, "name": "look", "text": "x"}


ANSWER = {"role": "assistant", "text": "Hello."}


def test_all_fields_of_a_run_input_are_read() -> None:
    """With all fields, and with the required ones only."""
    assert parse_run_input(json.dumps(with_prompt()).encode()) == RunInput(agent="support", prompt="Hi.")
    full = parse_run_input(
        json.dumps(
            with_messages(
                user(),
                {**asks("c1"), "provider_data": {"items": [1]}},
                {**found("c1"), "error": {"kind": "tool_error", "message": "no"}},
                **with_prompt(max_steps=3, model="openai:x", on_invalid_tool_input="throw", metadata={"a": "b"}),
                traceparent=TRACE,
            )
        ).encode()
    )
    assert (full.max_steps, full.model, full.on_invalid_tool_input, full.metadata, full.traceparent) == (
        *(3, "openai:x", "throw"),
        *({"a": "b"}, TRACE),
    )
    assert [type(message) for message in full.messages] == [UserMessage, AssistantMessage, ToolMessage]


def test_camel_case_fields_of_a_run_input_are_read() -> None:
    read = parse_run_input(json.dumps(with_prompt(maxSteps=2, onInvalidToolInput="feedback")).encode())
    assert (read.max_steps, read.on_invalid_tool_input) == (2, "feedback")


@pytest.mark.parametrize(
    "data",
    [
        with_messages(user()),
        with_messages(user(), ANSWER, user()),
        with_messages(user(), ANSWER, prompt="Go on."),
        with_messages(user(), asks("a", "b"), found("b"), found("a")),
        with_messages(user(), asks("a"), found("a"), ANSWER, asks("a"), found("a"), user()),
        with_messages(asks(), prompt="Go on."),
        with_prompt(messages=[], metadata={}, max_steps=None, model=None, traceparent=None),
    ],
)
def test_conversations_that_can_be_continued_are_accepted(data: dict[str, Any]) -> None:
    assert parse_run_input(json.dumps(data).encode()).agent == "support"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "The run was started without an input; give it one JSON object:"),
        (b"{", "The run's input is not JSON: EOF while parsing an object at line 1 column 1. Give it one JSON object:"),
        (b"\xff", "The run's input is not JSON:"),
        (b'"support"', 'The run\'s input must be one JSON object like {"agent": "assistant", "prompt": "…"}, but is "support".'),
        ([], 'The run\'s input must be one JSON object like {"agent": "assistant", "prompt": "…"}, but is [].'),
        ({"prompt": "x"}, '"agent" is missing; it is required.'),
        ({"agent": "support"}, 'The run has no "prompt" and no "messages"; give it one of them.'),
        ({"agent": "support", "messages": []}, 'The run has no "prompt" and no "messages"; give it one of them.'),
        (with_prompt(agent=""), '"agent" is "", but it must not be empty.'),
        (with_prompt(agent=7), '"agent" is 7, but it must be a string.'),
        (with_prompt(prompt=""), '"prompt" is empty; say what the agent is to do.'),
        (with_prompt(prompt=" \n"), '"prompt" is empty; say what the agent is to do.'),
        (with_prompt(prompt=1), '"prompt" is 1, but it must be a string.'),
        (with_prompt(max_steps=0), '"max_steps" is 0, but it must be at least 1.'),
        (with_prompt(max_steps=-1), '"max_steps" is -1, but it must be at least 1.'),
        (with_prompt(maxSteps="5"), '"maxSteps" is "5", but it must be an integer.'),
        (with_prompt(max_steps=1.5), '"max_steps" is 1.5, but it must be an integer.'),
        (with_prompt(maxDepth=-1), '"maxDepth" is -1, but it must be at least 0.'),
        (with_prompt(model=""), '"model" is "", but it must not be empty.'),
        (with_prompt(onInvalidToolInput="no"), '"onInvalidToolInput" is "no", but it must be \'feedback\' or \'throw\'.'),
        (with_prompt(metadata={"a": 1}), '"metadata.a" is 1, but it must be a string.'),
        (with_prompt(metadata={"user": 1}), '"metadata.user" is 1, but it must be a string.'),
        (with_prompt(metadata="a"), '"metadata" is "a", but it must be an object.'),
        (with_prompt(promt="x"), '"promt" is not a known field; did you mean "prompt"?'),
        (with_prompt(maxStep=1), '"maxStep" is not a known field; did you mean "max_steps"?'),
        (with_prompt(zzz=1), '"zzz" is not a known field; known are agent, prompt, messages, max_steps, model, on_invalid_tool_input, metadata, traceparent, max_total_tokens, max_cost, max_depth, max_sub_runs, tenant, user, priority, client_instructions, version, client_metadata.'),
        (with_prompt(traceparent="00-1-2-01"), "\"traceparent\" is '00-1-2-01'; it must be a W3C traceparent: 00-<32 hex>-<16 hex>-<2 hex>."),
        (with_prompt(traceparent=f"00-{0:032x}-{1:016x}-01"), "it must be a W3C traceparent"),
        (with_prompt(traceparent=f"00-{1:032x}-{0:016x}-01"), "it must be a W3C traceparent"),
        (with_prompt(traceparent=TRACE.upper().replace("1", "A")), "it must be a W3C traceparent"),
        (with_messages("x"), '"messages[0]" is "x", but it must be an object.'),
        (with_messages({"role": "system", "text": "x"}), '"messages[0]" needs a "role" of "user", "assistant" or "tool".'),
        (with_messages({"text": "x"}), '"messages[0]" needs a "role" of "user", "assistant" or "tool".'),
        (with_messages({"role": "user"}), '"messages[0].text" is missing; it is required.'),
        (with_messages(user(), {**user(), "name": "x"}), '"messages[1].name" is not a known field; leave it out.'),
        (with_messages({**asks("a"), "tool_calls": [{"id": "a", "name": "look"}]}), '"messages[0].tool_calls[0].arguments" is missing; it is required.'),
        (with_messages(user(), found("a")), "\"messages[1]\" is a tool result for call 'a', but no call of that id is open."),
        (with_messages(asks("a"), found("a"), found("a")), "\"messages[2]\" is a tool result for call 'a', but no call of that id is open."),
        (with_messages(asks("a", "b"), found("b"), user()), "The tool call 'a' in \"messages[0]\" has no result; add a \"tool\" message for it right after."),
        (with_messages(user(), asks("a"), prompt="x"), "The tool call 'a' in \"messages[1]\" has no result"),
        (with_messages(asks("a"), asks("b"), found("b"), found("a")), "The tool call 'a' in \"messages[0]\" has no result"),
        (with_messages(asks("a", "a"), found("a")), "\"messages[0]\" has two tool calls of the id 'a'; each needs its own."),
        (with_messages(user(), ANSWER), '"messages" end with the assistant\'s; end with a user message, or add a "prompt".'),
    ],
)  # fmt: skip
def test_each_fault_of_a_run_input_has_its_sentence(data: Any, says: str) -> None:
    assert refusal_of(data).startswith(says) or (says.startswith("it must") and says in refusal_of(data))


@pytest.mark.parametrize("start", [parse_run_input, parse_start_input, lambda data: make_run_input(**json.loads(data))])
@pytest.mark.parametrize("name", [*NOT_WRITTEN, "modelOnly", "outputSchema"])
@pytest.mark.parametrize("value", [None, {}, True])
def test_what_only_mulligan_writes_is_refused_by_its_name(start: Any, name: str, value: Any) -> None:
    """Over HTTP: tests/unit/test_caller_rights.py. Workflows have one such field."""
    if start is parse_start_input and name == "carried":
        return
    with pytest.raises(InvalidRunInputError) as refused:
        start(json.dumps(with_prompt(**{name: value})).encode())
    assert refused.value.message == f'"{name}" is set by Mulligan alone; {NOT_WRITTEN[to_snake(name)]}.'


def test_nobody_writes_what_only_mulligan_writes() -> None:
    written = {*Carried.model_fields, *StartInput.model_fields} - RunInput.model_fields.keys()
    assert not NOT_WRITTEN.keys() & RunInput.model_fields.keys()
    assert {"carried", "foreign_results", "model_only", "output_schema", "instructions_by_customer"} <= written


def test_what_is_carried_is_read_as_it_was_written() -> None:
    origin = Origin(kind="fork", workflow_id="w", run_id="r", step=3, edited_prompt=0)
    begun = StartInput.of(RunInput(agent="support", prompt="Hi."), origin=origin, undos=2, model_only=True)
    assert parse_start_input(begun.model_dump_json().encode()) == begun
    assert (begun.fork, begun.without_origin.fork, begun.without_origin.carried.model_only) == (origin, None, True)
    assert begun.without_origin.with_fields(model_only=False) == StartInput(agent="support", prompt="Hi.")


def test_up_to_five_faults_of_a_run_input_are_named() -> None:
    """In the order of the fields."""
    assert refusal_of({"prompt": 1, "promt": 1, "max_steps": 0}) == (
        '"agent" is missing; it is required. "prompt" is 1, but it must be a string. '
        '"max_steps" is 0, but it must be at least 1. '
        '"promt" is not a known field; did you mean "prompt"?'
    )
    assert refusal_of({f"zzz{n}": n for n in range(20)}).count("is not a known field") == 4


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (
            '{"agent": "a", "prompt": "x", "metadata": {' + ", ".join(f'"k{n}": 1' for n in range(5_000)) + "}}",
            "metadata.k0",
        ),
        ('{"agent": "a", "prompt": "x", ' + ", ".join(f'"k{n}": 1' for n in range(5_000)) + "}", "k0"),
    ],
    ids=["values", "fields"],
)
def test_of_thousands_of_faults_the_first_one_is_named(data: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault as a sentence would take longer than a workflow task may."""
    made: list[Any] = []
    monkeypatch.setattr("mulligan.run_input._fault_sentence", made.append)
    with pytest.raises(InvalidRunInputError, match=r"has 5,000 faults") as refused:
        parse_run_input(data.encode())
    assert f'in "{field}"' in str(refused.value)
    assert made == []


def test_of_thousands_of_wrong_messages_pydantic_reports_the_first_one_only() -> None:
    """A report of each takes a second, in which no other thread of a server runs."""
    for wrong in ([1] * 5_000, [{"role": "assistant", "tool_calls": [1] * 5_000}]):
        with pytest.raises(ValidationError) as refused:
            RunInput.model_validate({"agent": "a", "messages": wrong})
        assert refused.value.error_count() == 1
    assert refusal_of({"agent": "a", "messages": [1] * 5_000}) == '"messages[0]" is 1, but it must be an object.'
    with pytest.raises(ValidationError) as refused:
        RunInput.model_validate({"agent": "a", "prompt": [1] * 5_000})
    assert refused.value.error_count() == 1


def test_a_long_value_is_cut_in_the_sentence() -> None:
    assert len(refusal_of(with_prompt(agent=["x" * 10_000]))) < 200


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "but is null."),
        (with_prompt(agent=None), '"agent" is null, '),
        (with_prompt(prompt=True), '"prompt" is true, '),
        (with_prompt(messages={"role": "user"}), '"messages" is {"role": "user"}, '),
    ],
)
def test_values_are_quoted_as_they_were_written(data: Any, says: str) -> None:
    assert says in refusal_of(data)


def test_an_unknown_field_named_like_a_role_is_reported() -> None:
    assert refusal_of(with_messages({**user(), "tool": 1})) == '"messages[0].tool" is not a known field; leave it out.'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(RunInput.model_fields)), inner),
    max_leaves=8,
)
NAMES = st.sampled_from([*RunInput.model_fields, "maxSteps", "zzz"])
MESSAGES = st.lists(
    st.sampled_from([user(), asks("a"), asks("a", "b"), found("a"), found("b"), ANSWER, {}]), max_size=5
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.binary(max_size=20)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(NAMES, JSON).map(lambda fields: json.dumps(with_prompt(**fields)).encode())
    | MESSAGES.map(lambda messages: json.dumps(with_messages(*messages)).encode())
)
def test_any_bytes_are_accepted_or_refused_with_one_paragraph(data: bytes) -> None:
    """Each call in an accepted input has exactly one result."""
    try:
        run_input = parse_run_input(data)
    except InvalidRunInputError as error:
        message = error.message
    else:
        calls = [call for each in run_input.messages if isinstance(each, AssistantMessage) for call in each.tool_calls]
        assert len(calls) == sum(isinstance(each, ToolMessage) for each in run_input.messages)
        return
    assert message.endswith((".", "?"))
    assert "errors.pydantic.dev" not in message
