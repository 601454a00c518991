"""Feedback to the model: invalid fields by name, no terms of Python, and no secret in the part for spans."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from pydantic import AfterValidator, AnyUrl, BaseModel, Field, Json
from pydantic_core import PydanticCustomError

from mulligan import Agent, Tool, ToolCall, ToolCallError, UnknownToolError, tool
from mulligan.activities.answers import feedback
from mulligan.activities.answers.feedback import SCHEMA_SHOWN, TOOLS_SHOWN
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.prepare_call import ValidArguments, valid
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from tests.support.examples import examples
from tests.support.prepare_one_call import prepare_for

QUICK = settings(derandomize=True, deadline=None, max_examples=examples(100))
RUNTIME = ToolRuntime()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel, extra="forbid"):
    street: str
    number: Annotated[int, Field(ge=1)]


@dataclass
class Box:
    width: float


class Card(BaseModel, extra="forbid"):
    kind: Literal["card"]
    last_four: Annotated[str, Field(pattern=r"^\d{4}$")]


class Cash(BaseModel, extra="forbid"):
    kind: Literal["cash"]
    amount: Decimal


def refused_type(error):
    """A type whose validator refuses every value."""

    def check(value):
        raise error(value)

    return Annotated[str, AfterValidator(check)]


KNOWN: Any = refused_type(lambda value: ValueError(f"no customer is named {value}"))
ODD = refused_type(lambda value: AssertionError(f"{value} is odd"))
CRASH = refused_type(KeyError)
CUSTOM = refused_type(lambda value: PydanticCustomError("no_such", "no customer is named {name}", {"name": value}))


@tool
def ship(
    address: Address,
    colour: Colour = Colour.RED,
    boxes: list[Box] = [],  # noqa: B006 - as users write it
    when: date | None = None,
    pay: Annotated[Card | Cash, Field(discriminator="kind")] | None = None,
    amount: Annotated[Decimal | None, Field(le=10)] = None,
) -> str:
    """Ship an order."""
    return ""


def tool_taking(hint: Any) -> Tool:
    """A tool that takes one `value` of that type."""

    def take(value):
        return value

    take.__annotations__ = {"value": hint}
    return tool(take)


def call(raw: str, name: str = "ship") -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=raw)


async def look(raw: str, of: Tool, name: str | None = None) -> ValidArguments | ToolCallError:
    """The outcome of preparing a call."""
    try:
        return await prepare_for(call(raw, name or of.name), Agent(name="a", model="scripted:x", tools=[of]), RUNTIME)
    except ToolCallError as error:
        return error


def error_for(raw: str, of: Tool = ship, name: str | None = None) -> ToolCallError:
    done = asyncio.run(look(raw, of, name))
    assert isinstance(done, ToolCallError)
    return done


def faults(error: ToolCallError) -> list[str]:
    """The lines of its message that name a field."""
    return error.message.splitlines()[1:]


def test_feedback_on_invalid_arguments() -> None:
    error = error_for('{"address": {"number": 0, "zip": 1}, "color": "green"}')
    assert (error.kind, error.tool_name, error.call_id) == ("invalid_arguments", "ship", "c1")
    assert error.message == snapshot("""\
The arguments of `ship` are not what it takes, so it was not run:
- `address.street`: is required, but missing
- `address.number`: should be greater than or equal to 1
- `address.zip`: is not a field of it
- `color`: is not a field of it; did you mean `colour`?\
""")
    assert error.detail.splitlines() == [
        'You sent: {"address": {"number": 0, "zip": 1}, "color": "green"}',
        f"It takes a JSON object of this schema: {json.dumps(ship.schema)}",
        "Call it again with corrected arguments.",
    ]


def test_feedback_on_invalid_json() -> None:
    error = error_for('{"address": {"street": "Elm Street", "num')
    assert error.kind == "invalid_json"
    assert error.message == snapshot(
        "The arguments of `ship` are not valid JSON, so it was not run: the arguments stop in the middle of a name."
    )
    assert error.detail.splitlines()[:2] == snapshot(
        ['You sent: {"address": {"street": "Elm Street", "num', 'The fault is near: eet": "Elm Street", "num']
    )
    assert error.detail.splitlines()[-2:] == [
        "What you wrote ends too early, and nothing was added to it: write all of it.",
        "Call it again with corrected arguments.",
    ]
    assert "too early" not in error_for("I ship it").detail


@pytest.mark.parametrize("place", [0, 1, 300, 4_000, 8_000, 8_001])
def test_feedback_on_invalid_json_quotes_what_was_sent_around_the_fault(place: int) -> None:
    """Whatever the length of it. The message quotes nothing."""
    items = [str(1_000_000_000 + number) for number in range(8_001)]
    items[place - 1 if place else 0] = "FAULT"
    raw = f'{{"address": [{", ".join(items)}]}}'
    error = error_for(raw)
    [quoted] = [line for line in error.detail.splitlines() if line.startswith("You sent: ")]
    assert "FAULT" in quoted
    at = items.index("FAULT")
    assert all(each in quoted for each in items[max(0, at - 10) : at + 10])
    assert 500 < len(quoted) < 650
    assert ("characters before" in quoted, "more characters" in quoted) == (place >= 300, place <= 4_000)
    assert "FAULT" not in error.message


def test_arguments_that_are_no_object_are_quoted_once_in_any_feedback() -> None:
    """The model is sent `{}` in their place."""
    for raw, is_quoted in [("{}", False), ('{"a": 1}', False), ("", False), ("{'a': 1}", True), ("[1]", True)]:
        error = feedback.unknown_tool(call(raw, "x"), ["ship"])
        feedback.quote_unreadable(error, ParsedArguments.of(raw))
        assert error.text.count("You sent: ") == is_quoted
        assert (raw in error.detail) == (is_quoted or not raw)
        assert raw not in error.message or not raw
    for wrong in ("[1]", "{'a': 1"):
        invalid = error_for(wrong)
        feedback.quote_unreadable(invalid, ParsedArguments.of(wrong))
        assert invalid.text.count("You sent: ") == 1
    foreign = ToolCallError("m", detail="You sent: a parcel.")
    feedback.quote_unreadable(foreign, ParsedArguments.of("[1]"))
    assert foreign.text == "m\nYou sent: a parcel.\nYou sent: [1]"
    raw = "{'a': '" + "x" * 2_000 + "END"
    cut = feedback.truncated_call(call(raw), "the length limit")
    feedback.quote_unreadable(cut, ParsedArguments.of(raw))
    assert cut.text.endswith("END")


def test_feedback_on_an_unknown_tool() -> None:
    error = error_for("{}", name="shipp")
    assert isinstance(error, UnknownToolError)
    assert (error.available, error.raw_arguments) == (["ship"], "{}")
    assert error.text == snapshot("There is no tool `shipp`. Did you mean `ship`? The tools are: `ship`.")


def test_feedback_on_truncated_and_duplicate_calls() -> None:
    cut, twice = feedback.truncated_call(call('{"a'), "the length limit"), feedback.duplicate_call(call("{}"))
    assert [cut.kind, cut.text, twice.kind, twice.text] == snapshot(
        [
            "truncated_call",
            "You were cut off by the length limit while you wrote the call of `ship`, so it was not run. Call it again, with shorter arguments or in several calls.",
            "duplicate_call",
            "You made this call of `ship` twice in one step. It was run once; see the other call's result.",
        ]
    )
    assert [each.raw_arguments for each in (cut, twice)] == ['{"a', "{}"]


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ("{}", ["- `address`: is required, but missing"]),
        ("[]", ["- the arguments: should be an object"]),
        ('{"address": "Elm Street 1"}', ["- `address`: should be an object"]),
        ('{"address": {"street": 1}}', ["- `address.street`: should be a string", "- `address.number`: is required, but missing"]),
        ('{"address": {"street": "e", "number": "x"}}', ["- `address.number`: should be a valid integer, unable to parse string as an integer"]),
        ('{ADDRESS, "boxes": [{"width": 1}, {}]}', ["- `boxes[1].width`: is required, but missing"]),
        ('{ADDRESS, "boxes": {"width": 1}}', ["- `boxes`: should be an array"]),
        ('{ADDRESS, "colour": "green"}', ["- `colour`: should be 'red' or 'blue'"]),
        ('{ADDRESS, "amount": 11}', ["- `amount`: should be less than or equal to 10"]),
        ('{ADDRESS, "pay": {"kind": "card", "last_four": "1"}}', ["- `pay.last_four`: String should match pattern '^\\d{4}$'"]),
        ('{ADDRESS, "pay": {"kind": "cash"}}', ["- `pay.amount`: is required, but missing"]),
        ('{ADDRESS, "pay": {"kind": "gold"}}', ["- `pay`: is not valid"]),
        ('{ADDRESS, "colr": "red"}', ["- `colr`: is not a field of it; did you mean `colour`?"]),
        ('{ADDRESS, "zzz": "red"}', ["- `zzz`: is not a field of it"]),
        ('{"address": {"street": "e", "number": 1, "colr": 1}}', ["- `address.colr`: is not a field of it"]),
    ],
)  # fmt: skip
def test_each_invalid_field_is_named_by_its_path(sent: str, named: list[str]) -> None:
    """In the sent arguments. Names of union members are not in the path."""
    raw = sent.replace("ADDRESS", '"address": {"street": "e", "number": 1}')
    assert faults(error_for(raw)) == named


@pytest.mark.parametrize(
    ("hint", "fault"),
    [
        (Box, "should be an object"),
        (Address, "should be an object"),
        (dict[str, int], "should be an object"),
        (list[int], "should be an array"),
        (tuple[int, str], "should be an array"),
        (set[int], "should be an array"),
        (frozenset[int], "should be an array"),
        (str, "should be a string"),
        (None, "should be null"),
    ],
)
def test_a_value_of_another_type_is_named_in_terms_of_json(hint: Any, fault: str) -> None:
    """Not as an instance of a class, nor as a tuple: the model knows neither."""
    assert faults(error_for('{"value": 5}', tool_taking(hint))) == [f"- `value`: {fault}"]


def test_paths_do_not_contain_members_of_a_union() -> None:
    adopt = tool_taking(Cash | list[int])
    assert faults(error_for('{"value": 5}', adopt)) == [
        "- `value`: should be an object",
        "- `value`: should be an array",
    ]
    assert faults(error_for('{"value": ["x"]}', adopt))[1].startswith("- `value[0]`: should be a valid integer")


def test_paths_in_an_object_do_not_contain_members_of_a_union() -> None:
    named = faults(error_for('{"value": {}}', tool_taking(Cash | str)))
    assert named == [
        *(f"- `value.{name}`: is required, but missing" for name in ("kind", "amount")),
        "- `value`: should be a string",
    ]


def test_faults_beyond_twenty_are_counted() -> None:
    error = error_for(json.dumps({"address": {"street": "e", "number": 1}, "boxes": [{"width": "w"}] * 25}))
    assert len(faults(error)) == 21
    assert faults(error)[-1] == "- … and 5 more"


CHECKED = tool_taking(list[KNOWN])


@pytest.mark.parametrize(
    ("of", "value"),
    [(CHECKED, {"value": ["n"] * 10_000}), (CHECKED, {"value": ["n" * 1_000_000]}), (ship, {"n" * 1_000_000: 1})],
    ids=["many faults", "long words", "long name"],
)
def test_the_length_of_feedback_is_bounded(of: Tool, value: Any) -> None:
    assert len(error_for(json.dumps(value), of).text) < 20_000


@pytest.mark.parametrize(("name", "meant"), [("Ship", "ship"), ("ship_order", "ship"), ("zzz", None), ("", None)])
def test_feedback_suggests_the_nearest_tool_name(name: str, meant: str | None) -> None:
    error = feedback.unknown_tool(call("{}", name), ["ship", "look_up"])
    assert (f"Did you mean `{meant}`?" in error.text) is (meant is not None)
    assert "The tools are: `ship`, `look_up`." in error.text


def test_long_lists_of_tools_and_long_names_are_cut_in_feedback() -> None:
    error = feedback.unknown_tool(call("{}", "n" * 1_000_000), [f"t{n}_" for n in range(200)])
    assert f"`t{TOOLS_SHOWN - 1}_`" in error.text
    assert f"`t{TOOLS_SHOWN}_`" not in error.text
    assert len(error.text) < 1_000
    assert "There are no tools; answer in plain text." in feedback.unknown_tool(call("{}"), []).text


def test_of_a_long_schema_only_its_fields_are_named() -> None:
    assert error_for("{}", tool_taking(Annotated[str, Field(description="d" * SCHEMA_SHOWN)])).detail == snapshot("""\
You sent: {}
It takes a JSON object with the fields `value`; required: `value`.
Call it again with corrected arguments.\
""")


def test_long_input_is_cut_in_feedback() -> None:
    error = error_for(json.dumps({"address": "x" * 10_000}))
    assert len(error.detail.splitlines()[0]) < feedback.INPUT_SHOWN + 60
    assert error.detail.splitlines()[0].endswith("… (9515 more characters)")


def test_the_text_of_a_validator_is_in_the_detail_and_not_in_the_message() -> None:
    """The model needs the reason, which may quote the value."""
    error = error_for('{"value": ["Ann"]}', CHECKED)
    assert faults(error) == ["- `value[0]`: is not valid"]
    assert "- `value[0]`: Value error, no customer is named Ann" in error.detail


NOT_FOR_MODELS = ("Traceback", "errors.pydantic.dev", "<class", "Decimal(", "input_value", "input_type", "p0")
SECRET = "tOpSeCrEt"
TAKING: list[Any] = [
    *(str, int, float, bool, date, time, timedelta, Decimal, AnyUrl, IPv4Address, Colour, Box, Address),
    *(Literal["a", "b"], int | Colour, list[int], dict[str, int], tuple[int, int], set[int], Json[int]),
    *(Annotated[Card | Cash, Field(discriminator="kind")], Annotated[Decimal, Field(max_digits=4)]),
    *(Annotated[str, Field(max_length=2)], Annotated[str, Field(pattern="^a+$")]),
    *(KNOWN, ODD, CRASH),
]
WITH_SECRET = st.recursive(
    st.sampled_from([SECRET, f"2026-{SECRET}", f"http://{SECRET}:x", f"{SECRET}@example.com", 1, None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "last_four", "amount", "width", "number"]), inner)
    ),
    max_leaves=4,
)


@QUICK
@given(st.sampled_from([tool_taking(hint) for hint in TAKING]), WITH_SECRET, st.integers(0, 3))
def test_the_message_quotes_no_value(of: Tool, value: Any, left_out: int) -> None:
    """Spans contain the message."""
    raw = json.dumps({"value": value})
    raw = raw[: len(raw) - left_out]
    done = asyncio.run(look(raw, of))
    if isinstance(done, ToolCallError):
        assert SECRET[:4] not in done.message
        assert not [word for word in NOT_FOR_MODELS if word in done.text.replace(raw, "")]


def test_the_exception_of_a_validator_is_in_the_detail_only() -> None:
    """The detail is for the model, not for spans."""
    error = error_for('{"value": "Ann"}', tool_taking(CRASH))
    assert faults(error) == ["- they could not be checked"]
    assert "The check raised KeyError: 'Ann'" in error.detail
    assert isinstance(error.source, KeyError)


@pytest.mark.parametrize("of", [tool_taking(CUSTOM), tool_taking(UUID)], ids=["a user's own type of error", "UUID"])
def test_no_message_of_a_pydantic_error_quotes_a_value(of: Tool) -> None:
    assert "Q" not in error_for('{"value": "Q"}', of).message


def test_a_call_that_was_started_before_is_not_said_to_be_not_run() -> None:
    """Its tool was changed, or removed, by a deploy between two attempts."""
    call = ToolCall(id="1", name="ship", arguments="")
    first, again = (feedback.tool_missing_on_worker(call, "agents", [], attempt=attempt).message for attempt in (1, 2))
    assert "may or may not have done its work" not in first
    assert "This call was started before, and may or may not have done its work. Continue without it." in again
    target = feedback.Target("ship", tool(_ship_to).arguments)
    error = valid(target.accepts, {})
    assert isinstance(error, Exception)
    first, again = (target.not_valid(call, {}, error, attempt=attempt).message for attempt in (1, 2))
    assert first.startswith("The arguments of `ship` are not what it takes, so it was not run:\n- ")
    assert again.startswith(
        "The arguments of `ship` are no longer what it takes, as the tool was changed. This call was started before, and "
        "may or may not have done its work.\n- "
    )


def _ship_to(city: str) -> str:
    return city


def test_feedback_describes_a_limited_number_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a megabyte of unknown fields, each compared with all names, stopped the worker for seconds."""
    described: list[str] = []
    says = feedback._says

    def count(fault: Any, names: Any) -> str:
        described.append(says(fault, names))
        return described[-1]

    monkeypatch.setattr(feedback, "_says", count)

    @tool
    def ship(customer_name_of_order: int, other_customer_name_of_order: int, third_customer_name_of_order: int) -> str:
        """Ship."""
        return ""

    value: Any = {f"customer_name_of_orde{number}": 1 for number in range(16_000)}
    error = valid(ship.arguments, value)
    assert isinstance(error, Exception)
    text = (
        feedback.Target("ship", ship.arguments)
        .not_valid(ToolCall(id="a", name="ship", arguments=""), value, error)
        .text
    )
    assert len(described) == feedback.FAULTS_READ
    assert len(text) < 10_000
    assert "and 15983 more" in text
