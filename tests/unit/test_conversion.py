"""Arguments of a `@tool` function and of an MCP tool with one JSON schema are read alike."""

from __future__ import annotations

import asyncio
import json
from datetime import date, timedelta
from enum import IntEnum
from random import Random
from typing import Annotated, Any, Literal, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, WithJsonSchema

from mulligan import Agent, Call, InvalidToolInput, Say, ToolCall, ToolContext, tool
from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.prepare_call import ValidArguments, prepare, valid
from mulligan.activities.answers.repair_json import parse_json
from mulligan.activities.mcp.servers import _schemas
from mulligan.errors import ToolCallError
from mulligan.output import NotOfSchema, Output
from mulligan.schema import conversion
from mulligan.schema.arguments_model import Arguments
from mulligan.schema.conversion import MOST_STEPS, Conversion, _number, convert
from mulligan.schema.schema_arguments import SchemaArguments, validator_of
from mulligan.schema.subschemas import References
from mulligan.testing import ScriptedModel, run_agent
from tests.support.examples import examples
from tests.support.generated_arguments import function_of, random_case
from tests.support.prepare_one_call import look


def as_mcp(schema: dict[str, Any]) -> Arguments:
    """The arguments of an MCP server's tool with this schema."""
    shown, checked_by = _schemas(schema)
    return SchemaArguments(shown, validator_of(json.dumps(shown if checked_by is None else checked_by)))


async def outcome(accepts: Arguments, arguments: Any) -> tuple[Any, list[str]] | str:
    """The prepared arguments and the names of the repairs; or the kind of the error."""
    call = ToolCall(id="1", name="t", arguments=json.dumps(arguments))

    try:
        prepared = await prepare(call, ParsedArguments.of(call.arguments), Target("t", accepts))
    except ToolCallError as error:
        return error.kind
    return prepared.arguments, [repair.by for repair in prepared.repairs]


def plain(value: Any) -> Any:
    """A value in which 5 and 5.0 are equal, and 1 and true are not."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return ("boolean", value) if isinstance(value, bool) else value


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(st.integers(0, 10**9))
def test_a_function_and_an_mcp_tool_of_one_schema_take_the_same_arguments(seed: int) -> None:
    """Both agree on the verdict, the executed arguments and the repairs; and executed arguments fit the schema."""
    case = random_case(Random(seed))
    received: list[dict[str, Any]] = []
    mine = tool(name="t")(function_of(case, received.append))
    of_tool = asyncio.run(outcome(mine.arguments, case.arguments))
    of_mcp = asyncio.run(outcome(as_mcp(mine.schema), case.arguments))
    assert plain(of_tool if isinstance(of_tool, str) else list(of_tool)) == plain(
        of_mcp if isinstance(of_mcp, str) else list(of_mcp)
    )
    fits = Draft202012Validator(mine.schema).is_valid
    if isinstance(of_tool, str):
        assert not fits(case.arguments)
        return
    executed, by = of_tool
    assert fits(executed)
    assert bool(by) == (not fits(case.arguments))
    if not by:
        assert plain(executed) == plain(case.arguments)
    args, kwargs = mine.arguments.bind(mine.arguments.validate(executed), None)
    assert (args, kwargs.keys()) == ([], executed.keys())


class Inner(BaseModel):
    n: int
    m: int = 3


@tool
def take(  # noqa: PLR0913 - a field of each type
    n: int = 1,
    x: float = 1.0,
    yes: bool = False,
    text: str = "",
    many: list[int] = [],  # noqa: B006 - as users write it
    inner: Inner | None = None,
    either: int | str = 0,
    colour: Literal["red"] = "red",
    level: Literal[1, 2] = 1,
    when: date | None = None,
) -> str:
    """Take values."""
    return ""


def test_a_fraction_that_is_whole_stays_a_fraction_where_the_schema_says_number() -> None:
    """A tool of a schema alone gets what the model wrote; an integer is made of it only for `integer`."""
    assert [type(_number("2.0", frozenset(types))) for types in ({"number"}, {"integer"})] == [float, int]


@pytest.mark.parametrize(
    ("written", "taken", "by"),
    [
        ({"n": "5"}, {"n": 5}, "integer"),
        ({"n": " +5.0 "}, {"n": 5}, "integer"),
        ({"x": "1e3"}, {"x": 1000}, "number"),
        ({"yes": "True"}, {"yes": True}, "boolean"),
        ({"yes": 0}, {"yes": False}, "boolean"),
        ({"many": "[1, 2]"}, {"many": [1, 2]}, "array"),
        ({"many": '["1", 2]'}, {"many": [1, 2]}, "array+integer"),
        ({"inner": '{"n": "1"}'}, {"inner": {"n": 1}}, "integer+object"),
        ({"inner": {"n": 1, "m": None}}, {"inner": {"n": 1}}, "null"),
        ({"n": None, "x": "2"}, {"x": 2}, "null+number"),
        ({"level": "2"}, {"level": 2}, "integer"),
        # These are as the schema says.
        ({"inner": None}, {"inner": None}, None),
        ({"either": "5"}, {"either": "5"}, None),
        ({"text": "[1]"}, {"text": "[1]"}, None),
        ({"n": 5.0}, {"n": 5}, None),
    ],
)
async def test_a_value_of_another_type_that_means_the_same_is_converted(
    written: Any, taken: Any, by: str | None
) -> None:
    """For both kinds of tools; each conversion is in the repairs."""
    for accepts in (take.arguments, as_mcp(take.schema)):
        assert await outcome(accepts, written) == (taken, [f"schema:{by}"] if by else [])


@pytest.mark.parametrize(
    "written",
    [
        {"n": True},
        {"x": False},
        {"n": "5.5"},
        {"n": "many"},
        {"n": "0x10"},
        {"n": ""},
        {"x": "nan"},
        {"x": "1e999"},
        {"yes": 2},
        {"yes": "perhaps"},
        {"text": 5},
        {"text": True},
        {"many": "[1, 2"},
        {"many": "1, 2"},
        {"many": "['1']"},
        {"many": "5"},
        {"many": 5},
        {"inner": "[]"},
        {"inner": {"n": None}},
        {"when": 5},
        {"colour": None, "n": "x"},
        {"level": True},
        {"many": "[" * 60 + "]" * 60},
    ],
)
async def test_a_value_that_does_not_mean_the_same_is_refused(written: Any) -> None:
    for accepts in (take.arguments, as_mcp(take.schema)):
        assert await outcome(accepts, written) == "invalid_arguments"


async def test_the_same_conversions_follow_repaired_json_and_a_bare_value() -> None:
    """Each is recorded, with the value before and after it."""

    @tool
    def only(n: int) -> str:
        """Take one number."""
        return ""

    agent = Agent(name="a", model="scripted:x", tools=[only])
    mended, bare = await look("only", "{'n': '5'}", agent), await look("only", '"5"', agent)
    assert isinstance(mended, ValidArguments)
    assert isinstance(bare, ValidArguments)
    assert [(each.by, each.before, each.after) for each in mended.repairs] == [
        ("json:single_quotes", "{'n': '5'}", {"n": "5"}),
        ("schema:integer", {"n": "5"}, {"n": 5}),
    ]
    assert [(each.by, each.before, each.after) for each in bare.repairs] == [
        ("bare_value", "5", {"n": "5"}),
        ("schema:integer", {"n": "5"}, {"n": 5}),
    ]


def without_commas(given: Any) -> Any:
    return given.replace(",", "") if isinstance(given, str) else given


def split(given: Any) -> Any:
    return given.split(",") if isinstance(given, str) else given


class Price(BaseModel):
    amount: Annotated[float, BeforeValidator(without_commas)]
    count: int = 1


async def test_what_users_own_validators_take_is_left_to_them() -> None:
    """A validator that is called first gets what the model wrote, also inside of a model; other fields are converted."""

    @tool
    def pay(price: Price, tags: Annotated[list[str], BeforeValidator(split)]) -> str:
        """Pay."""
        return ""

    assert await outcome(pay.arguments, {"price": {"amount": "1,234.5", "count": "2"}, "tags": "a,b"}) == (
        {"price": {"amount": 1234.5, "count": 2}, "tags": ["a", "b"]},
        ["schema:integer"],
    )
    assert "x-mulligan" not in json.dumps(pay.schema)


def test_what_is_executed_is_at_most_100_levels_deep() -> None:
    """A list as a text may be as deep as a whole call."""
    schema: dict[str, Any] = {"properties": {"a": {"$ref": "#/$defs/list"}}}
    schema["$defs"] = {"list": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/list"}}, {"type": "integer"}]}}
    value: Any = "[" * 60 + "]" * 60
    assert convert(schema, {"a": value}, parse_json).kinds == {"array"}
    for _ in range(60):
        value = [value]
    assert not convert(schema, {"a": value}, parse_json).kinds


def test_a_schema_that_branches_without_end_is_read_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is converted."""
    branching = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    schema = {"properties": {"a": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": {"anyOf": [branching, dict(branching)]}}}
    value: Any = "5"
    for _ in range(90):
        value = [value]
    steps: list[int] = []

    target = References.target

    def count(references: References, reference: Any) -> Any:
        steps.append(1)
        return target(references, reference)

    monkeypatch.setattr(References, "target", count)
    assert convert(schema, {"a": value}, parse_json) == Conversion({"a": value})
    assert len(steps) <= MOST_STEPS
    assert convert({"$ref": "#"}, {"a": 1}, parse_json).value == {"a": 1}


def test_many_faults_are_read_in_linear_time() -> None:
    schema = {"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    converted = convert(schema, {"a": ["x"] * 90_000}, parse_json)
    assert converted.faults[:2] == (("a[0]", "should be of type integer"), ("a[1]", "should be of type integer"))
    assert len(converted.faults) == 100


def test_values_and_names_of_a_schema_are_read_once_and_count_as_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's `enum` may have thousands of texts, and a call thousands of items. Then nothing is converted."""
    types = mock.Mock(wraps=conversion._type)
    monkeypatch.setattr(conversion, "_type", types)
    texts = [f"text {number}" for number in range(2_000)]

    def kinds(items: Any, item: Any, count: int) -> frozenset[str]:
        schema = {"properties": {"a": {"type": "array", "items": items}, "n": {"type": "integer"}}}
        return convert(schema, {"a": [item] * count, "n": "5"}, parse_json).kinds

    assert kinds({"enum": texts}, texts[-1], 1_000) == {"integer"}
    assert types.call_count < 10_000
    assert not kinds({"required": texts}, dict.fromkeys(texts), 1_000)
    assert not kinds({"enum": [[text] for text in texts]}, [texts[-1]], 1_000)
    assert not kinds({"enum": [str(number) for number in range(MOST_STEPS)]}, "1", 1)


class Lenient(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    text: str


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)

    n: int


class Level(IntEnum):
    LOW = 1
    HIGH = 2

    @classmethod
    def _missing_(cls, value: object) -> Level | None:
        return cls.__members__.get(str(value).upper())


class Point(NamedTuple):
    x: int
    y: int = 0


async def test_what_users_types_take_is_left_to_them_and_what_they_refuse_is_not_converted() -> None:
    """A type that reads more than its schema says does so; a strict one gets the value that the model wrote."""

    @tool
    def place(  # noqa: PLR0913 - a field of each type
        lenient: Lenient = Lenient(text=""),  # noqa: B008 - as users write it
        level: Level = Level.LOW,
        point: Point = Point(0),  # noqa: B008 - as users write it
        strict: StrictInt = 0,
        field: Annotated[int, Field(strict=True)] = 0,
        exact: Exact = Exact(n=0),  # noqa: B008 - as users write it
        split_up: Annotated[int, BeforeValidator(without_commas), WithJsonSchema({"type": "integer"})] = 0,
        span: timedelta = timedelta(0),
    ) -> str:
        """Place."""
        return ""

    for taken in ({"lenient": {"text": 5}}, {"level": "high"}, {"point": {"x": 1, "y": 2}}, {"split_up": "1,000"}):
        assert isinstance(await outcome(place.arguments, taken), tuple), taken
    refused = [{"strict": "5"}, {"field": "5"}, {"exact": {"n": "5"}}, {"level": True}, {"span": 5}]
    for each in (*refused, {"strict": True}, {"lenient": {"text": True}}):
        assert await outcome(place.arguments, each) == "invalid_arguments", each


@pytest.mark.parametrize("hint", [bool | int, int | bool, list[bool] | list[int], list[int] | list[bool]])
async def test_a_text_with_a_number_is_a_number_where_both_are_allowed(hint: Any) -> None:
    async def either(x: Any) -> str:
        """Take either."""
        return ""

    either.__annotations__["x"] = hint
    declared = tool(either)
    is_list = "array" in json.dumps(declared.schema)
    for accepts in (declared.arguments, as_mcp(declared.schema)):
        for written, taken, by in (("1", 1, "integer"), ("0", 0, "integer"), ("yes", True, "boolean")):
            value, expected = ([written], [taken]) if is_list else (written, taken)
            given = await outcome(accepts, {"x": value})
            assert plain(list(given)) == plain([{"x": expected}, [f"schema:{by}"]])


async def test_null_is_left_out_only_where_there_is_a_default() -> None:
    """To clear a field is not to leave it as it is."""

    @tool
    def rename(nick: str = "", tags: list[str] = Field(default_factory=list)) -> str:  # noqa: B008 - as users write it
        """Rename."""
        return ""

    nick = {"type": "string"}
    plain_field, with_default = (
        as_mcp({"type": "object", "properties": {"nick": each}}) for each in (nick, {**nick, "default": ""})
    )
    assert await outcome(plain_field, {"nick": None}) == "invalid_arguments"
    assert await outcome(with_default, {"nick": None}) == ({}, ["schema:null"])
    assert await outcome(rename.arguments, {"nick": None, "tags": None}) == ({}, ["schema:null"])


def test_outputs_are_read_by_the_same_rules() -> None:
    """Strict modes write null for what could be left out."""

    class Plan(BaseModel):
        days: int
        note: str = "none"

    of_type, of_schema = (Output.from_declaration(each).whole for each in (Plan, Plan.model_json_schema()))
    assert valid(of_type, {"days": "2", "note": None}) == {"days": 2, "note": "none"}
    assert valid(of_schema, {"days": "2", "note": None}) == {"days": 2}
    assert isinstance(valid(of_type, {"days": True}), NotOfSchema)


async def test_an_alias_is_the_name_of_the_field_everywhere() -> None:
    """Of a field that Python cannot name: in the schema, errors, repairs, spans, the fixer, the approval and the call."""
    seen: dict[str, Any] = {}

    def fix(invalid: InvalidToolInput) -> object:
        seen["fixed"] = (invalid.arguments, list(invalid.schema["properties"]))
        return {**invalid.arguments, "class": "second"} if invalid.arguments.get("class") == "2nd" else None

    def ask(arguments: Any, ctx: ToolContext) -> bool:
        seen["asked"] = arguments
        return False

    @tool(fix=fix, needs_approval=ask)
    def book(
        from_: Annotated[str, Field(alias="from", description="Where it begins.")],
        class_: Annotated[Literal["first", "second"], Field(alias="class")] = "second",
        max_: Annotated[float, Field(alias="max")] = 9,
    ) -> str:
        """Book a journey."""
        return json.dumps([from_, class_, max_])

    model = ScriptedModel(
        Say(calls=[Call("book", {"from_": "Rome"})]),
        Say(calls=[Call("book", {"from": "Rome", "max": "inf"})]),
        Say(calls=[Call("book", {"from": "Rome", "max": True})]),
        Say(calls=[Call("book", {"from": "Rome", "max": "5", "class": None})]),
        Say(calls=[Call("book", {"from": "Rome", "class": "2nd"})]),
        Say("done"),
    )
    run = await run_agent(Agent(name="clerk", model="openai:m", tools=[book]), "Book.", model=model)
    *_, converted, fixed = run.calls
    texts = [call.result.text for call in run.calls if call.result]
    assert list(book.schema["properties"]) == ["from", "class", "max"]
    assert "- `from_`: is not a field of it; did you mean `from`?" in texts[0]
    assert "- `from`: is required, but missing" in texts[0]
    assert "- `max` should be a finite number" in texts[1]
    assert "- `max` should be of type number" in texts[2]
    assert texts[3] == '["Rome", "second", 5.0]'
    assert [(each.by, each.after) for each in converted.repairs] == [("schema:null+number", {"from": "Rome", "max": 5})]
    assert texts[4] == '["Rome", "second", 9]'
    assert seen["fixed"] == ({"from": "Rome", "class": "2nd"}, ["from", "class", "max"])
    assert seen["asked"] == fixed.arguments == {"from": "Rome", "class": "second"}
    [span] = [each for each in run.spans if each.attributes.get("mulligan.repairs") == ("fix",)]
    assert json.loads(span.attributes["ai.toolCall.args"]) == {"from": "Rome", "class": "second"}
    assert valid(book.arguments, {"from": "Rome", "max": "5"}) == {"from": "Rome", "max": 5}  # an edit by a person
