"""Arguments that mean the same are equal calls, however they are written and in whichever process; others are not."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import InitVar, dataclass, field
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    create_model,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import CoreSchema, core_schema

from mulligan import Agent, Call, Decide, Say, Tool, ToolError, tool
from mulligan.activities.answers.prepare_call import ValidArguments, accepted
from mulligan.output import Output
from mulligan.testing import Case, ScriptedModel, replay, run_agent
from mulligan.wire.approval_rules import Rule
from mulligan.wire.case import CaseSettings, parse_case
from mulligan.wire.start_input import StartInput
from tests.support.spelled_values import digest_in, random_kind, tool_of, written

ROOT = Path(__file__).parents[2]


class Point(BaseModel):
    x: int
    y: int = 0
    names: set[str] = Field(default_factory=set)


class Line(BaseModel):
    points: list[Point] = Field(default_factory=lambda: [Point(x=1)])
    width: Decimal = Decimal("1.0")
    made: datetime = Field(default_factory=datetime.now)


class Circle(BaseModel):
    radius: int = 1


class Square(BaseModel):
    side: int = 1


@dataclass
class Parcel:
    weight: float = 1.0
    key: str = field(default_factory=lambda: uuid4().hex)
    inside: list[str] = field(default_factory=list)


class Odd:
    """A value of a type that only its own functions know."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


OddText = Annotated[Odd, PlainValidator(lambda text: Odd(text.lower())), PlainSerializer(lambda odd: odd.text)]
MINUTES = Annotated[timedelta, BeforeValidator(lambda value: f"PT{value}M" if isinstance(value, int) else value)]


class Shown(str):
    """A text that shows something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "***"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler(str))


@pydantic_dataclass(config=ConfigDict(extra="allow"))
class Allowing:
    x: int = 1


@dataclass
class Scaled:
    x: int
    scale: InitVar[int] = 1

    def __post_init__(self, scale: int) -> None:
        self.scaled = self.x * scale


@pydantic_dataclass
class Nested:
    x: int = Field(0, validation_alias=AliasPath("a", "b"))


class Swapped(BaseModel):
    a: int = Field(serialization_alias="b")
    b: int


def item(kind: str) -> Any:
    """A class whose name another module has too."""
    fields: dict[str, Any] = {"kind": (Literal[kind], kind)}
    return create_model("Item", __module__=kind, **fields)


SHOP_ITEM, BANK_ITEM = item("shop"), item("bank")


class Place(NamedTuple):
    x: int
    y: int


class Size(NamedTuple):
    width: int
    height: int


def take(hint: Any, default: Any = ...) -> Tool:
    def f(value: Any = default, other: int = 3) -> None:
        """Take."""

    if default is ...:
        f.__defaults__ = (3,)
    f.__annotations__ = {"value": hint, "other": int, "return": None}
    return tool(f)


def digest(of: Tool, arguments: dict[str, Any]) -> str:
    found = accepted(of.arguments, arguments)
    assert isinstance(found, ValidArguments), found
    return digest_in(found)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_all_ways_to_write_a_value_are_one_call_and_other_values_are_another_one(seed: int) -> None:
    chance = Random(seed)
    kind = random_kind(chance)
    of = tool_of(kind)
    seen: dict[Any, str] = {}
    for meaning in [kind.mean(chance) for _ in range(3)]:
        digests = {digest_in(written(kind, chance, meaning, of)) for _ in range(3)}
        assert len(digests) == 1, (kind.hint, meaning)
        seen[meaning] = digests.pop()
    assert len({*seen.values()}) == len(seen), (kind.hint, seen)


async def test_the_digests_and_what_is_recorded_do_not_depend_on_the_process() -> None:
    texts = []
    for seed in ("0", "1", "77"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.spelled_values", "0", "40"),
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        texts.append((await process.communicate())[0])
    assert len(texts[0].splitlines()) == 40
    assert len({*texts}) == 1


SAME: list[tuple[Any, Any, Any]] = [
    (set[str], ["b", "a"], ["a", "b", "a"]),
    (list[set[frozenset[int]]], [[[2, 1], [3]]], [[[3], [1, 2]]]),
    (set[Decimal], [1, "2.50"], ["2.5", "1.0"]),
    (Decimal, 12.5, "12.50"),
    (Decimal, "1e2", 100),
    (Decimal, "1e999999", "10e999998"),
    (float, 1, 1.0),
    (float, -0.0, 0),
    (int, "5", 5.0),
    (Any, 1e2, 100),
    (Any, {"a": [1.0], "b": 2}, {"b": 2.0, "a": [1]}),
    (datetime, "2026-11-28T10:00:00Z", "2026-11-28T15:30:00.000+05:30"),
    (datetime, "0001-01-01T00:00:00+02:00", "0001-01-01T01:00:00+03:00"),
    (datetime, "2026-11-28T10:00:00", "2026-11-28 10:00:00.0"),
    (datetime | str, "2026-11-28T10:00:00Z", "2026-11-28T11:00:00+01:00"),
    (time, "10:00Z", "12:00:00+02:00"),
    (MINUTES, 1, "PT60S"),
    (UUID, "12345678123456781234567812345678", "{12345678-1234-5678-1234-567812345678}"),
    (dict[Decimal, int], {"1.0": 1}, {"1.00": 1}),
    (Point, {"x": 1}, {"x": "1", "y": 0.0, "names": []}),
    (Point | None, {"x": 1, "names": ["b", "a"]}, {"names": ["a", "b"], "y": 0, "x": 1}),
    (dict[str, list[Point]], {"k": [{"x": 1}]}, {"k": [{"x": 1, "y": 0}]}),
    (Line, {}, {"points": [{"x": 1, "y": 0}], "width": 1}),
    (Circle | Square, {"radius": 1}, {}),
    (Parcel, {}, {"weight": 1, "inside": []}),
    (tuple[Parcel, ...], [{}, {}], [{"weight": 1}, {"inside": []}]),
    (list[OddText], ["A", "b"], ["a", "B"]),
]
OTHER: list[tuple[Any, Any, Any]] = [
    (str, "5", "5.0"),
    (str, "a", "A"),
    (int | str, 5, "5"),
    (list[int], [1, 2], [2, 1]),
    (Any, 1, True),
    (Any, 0, None),
    (int, 2**53, 2**53 + 1),
    (Decimal, "1", "1.00000000000000000000000000001"),
    (Decimal, "0.1", "0.1000000000000000055511151231257827"),
    (datetime, "2026-11-28T10:00:00", "2026-11-28T10:00:00Z"),
    (datetime, "2026-11-28T10:00:00.000001Z", "2026-11-28T10:00:00Z"),
    (Circle | Square, {"radius": 1}, {"side": 1}),
    (Point, {"x": 1, "names": ["a"]}, {"x": 1}),
    (Line, {"made": "2026-11-28T10:00:00"}, {}),
    (Parcel, {"key": "k"}, {}),
    (SecretStr, "a", "b"),
    (list[OddText], ["a"], ["b"]),
    (dict[str, Any], {"\0time": 1}, {"time": 1}),
    (Shown, "a", "b"),
    (Allowing, {"x": 1, "more": 1}, {"x": 1, "more": 2}),
    (Scaled, {"x": 1, "scale": 2}, {"x": 1, "scale": 3}),
    (Annotated[Allowing, BeforeValidator(lambda value: {"x": value["old"]})], {"old": 1}, {"old": 2}),
    (Nested, {"a": {"b": 1}}, {"a": {"b": 2}}),
    (Annotated[list[Allowing], BeforeValidator(lambda value: value[::-1])], [{"x": 5}, {}], [{"x": 6}, {}]),
    (Swapped, {"a": 5, "b": 3}, {"a": 6, "b": 3}),
    (Annotated[SHOP_ITEM | BANK_ITEM, Field(discriminator="kind")], {"kind": "shop"}, {"kind": "bank"}),
    (Place | Size, {"x": 1, "y": 2}, {"width": 1, "height": 2}),
]


@pytest.mark.parametrize(("hint", "one", "two"), SAME, ids=[f"same-{n}" for n in range(len(SAME))])
def test_equal_values(hint: Any, one: Any, two: Any) -> None:
    of = take(hint)
    assert digest(of, {"value": one}) == digest(of, {"value": two, "other": 3})


@pytest.mark.parametrize(("hint", "one", "two"), OTHER, ids=[f"other-{n}" for n in range(len(OTHER))])
def test_other_values(hint: Any, one: Any, two: Any) -> None:
    of = take(hint)
    assert digest(of, {"value": one}) != digest(of, {"value": two})


@pytest.mark.parametrize(
    ("hint", "default", "given"),
    [(int | None, None, None), (float, 1, 1.0), (frozenset[str], frozenset({"b", "a"}), ["a", "b"]), (Point, Point(x=1), {"x": 1, "y": 0})],
    ids=["null", "number", "set", "object"],
)  # fmt: skip
def test_an_argument_that_is_left_out_equals_its_default(hint: Any, default: Any, given: Any) -> None:
    of = take(hint, default)
    assert digest(of, {}) == digest(of, {"value": given, "other": 3.0}) != digest(of, {"other": 4})


def test_sets_are_recorded_in_their_order_and_numbers_in_them_by_value() -> None:
    found = accepted(take(set[int | str]).arguments, {"value": ["b", 10, "a", 9]})
    assert isinstance(found, ValidArguments)
    assert found.arguments == {"value": [9, 10, "a", "b"]}
    output = Output.from_declaration(Point).whole
    names: list[Any] = ["d", "b", "c", "a"]
    assert output.to_json(output.validate({"x": 1, "names": names}))["names"] == sorted(names)  # type: ignore[call-overload, index]


@pytest.mark.parametrize(
    ("hint", "value"), [(set[str], ["a"]), (Point, {"x": 1}), (Circle, {}), (datetime, "2026-11-28T10:00:00Z"), (UUID, "12345678-1234-5678-1234-567812345678"), (Path, "a"), (Literal["a"], "a"), (Any, {"a": [1.5]})], ids=str
)  # fmt: skip
def test_history_has_no_digest_where_the_json_of_the_arguments_says_the_same(hint: Any, value: Any) -> None:
    found = accepted(take(hint).arguments, {"value": value})
    assert isinstance(found, ValidArguments)
    assert found.digest is None


HOME = Point(x=1)
RAN: list[Any] = []


@tool(once=True)
def ship(items: set[str], price: Decimal = Decimal(1), at: datetime | None = None, to: Point = HOME) -> str:
    """Ship."""
    RAN.append(sorted(items))
    return f"shipped {len(RAN)}"


WAYS: list[dict[str, Any]] = [
    {"items": ["b", "a"], "price": 1.5, "at": "2026-11-28T10:00:00Z"},
    {"items": ["a", "b", "a"], "price": "1.50", "at": "2026-11-28T11:00:00+01:00", "to": {"x": 1}},
    {"items": ["a", "b"], "price": "1.5", "at": "2026-11-28T10:00:00.0Z", "to": {"x": 1, "y": 0, "names": []}},
]


async def test_once_and_max_repeats_compare_by_it() -> None:
    RAN.clear()
    calls = [Say(calls=[Call("ship", way)]) for way in WAYS]
    agent = Agent(name="a", model="scripted:m", tools=[ship], max_repeats=None)
    run = await run_agent(agent, "Go.", model=ScriptedModel(*calls, "done"))
    assert [call.result and call.result.error and call.result.error.kind for call in run.calls] == [
        None,
        "duplicate_call",
        "duplicate_call",
    ]
    assert RAN == [["a", "b"]]
    repeating = Agent(name="a", model="scripted:m", tools=[look], max_repeats=3)
    looks = [Say(calls=[Call("look", {"at": way["at"]})]) for way in WAYS]
    run = await run_agent(repeating, "Go.", model=ScriptedModel(*looks))
    assert run.result is not None
    assert run.result.status == "max_repeats"


@tool
def look(at: datetime) -> str:
    """Look."""
    raise ToolError("It is dark.")


async def test_recorded_tools_give_equal_calls_the_recorded_result() -> None:
    """Also where the case has the arguments only, as they are recorded; and of a call whose arguments are long."""
    long = {**WAYS[0], "items": [f"item {number}" for number in range(400)]}
    RAN.clear()
    agent = Agent(name="a", model="scripted:m", tools=[ship])
    model = ScriptedModel(Say(calls=[Call("ship", WAYS[0]), Call("ship", long)]), "done")
    run = await run_agent(agent, "Go.", model=model)
    assert run.result is not None
    case = Case(
        version=1,
        id="original",
        run_id="1",
        agent="a",
        input=StartInput(agent="a", prompt="Go."),
        instructions=run.instructions,
        tools=run.tools,
        output="done",
        status="completed",
        settings=CaseSettings(model="scripted:m", max_steps=9),
        messages=run.messages,
        steps=run.steps,
    )
    case = parse_case(case.model_dump_json().encode(), "case.json")
    other = {**WAYS[1], "items": [*reversed(long["items"])]}
    model = ScriptedModel(Say(calls=[Call("ship", WAYS[1]), Call("ship", other)]), "done")
    again = await run_agent(agent, case.run_input(), model=model)
    assert [call.recorded for call in again.calls] == [True, True]
    assert [call.result and call.result.text for call in again.calls] == ["shipped 1", "shipped 2"]
    assert len(RAN) == 2
    assert len((await replay(case, agent)).calls) == 2


@tool(needs_approval=True, once=True)
def buy(items: set[str], at: datetime) -> str:
    """Buy."""
    RAN.append(sorted(items))
    return f"bought {len(RAN)}"


async def test_a_recorded_call_that_was_edited_keeps_both_digests() -> None:
    agent = Agent(name="a", model="scripted:m", tools=[buy])
    edit = {"items": ["z", "y"], "at": "2026-11-28T12:00:00+02:00"}
    first = Say(calls=[Call("buy", {"items": ["b", "a"], "at": "2026-11-28T10:00:00Z"})])
    run = await run_agent(
        agent,
        "Go.",
        model=ScriptedModel(first, "done"),
        person=lambda call: Decide(call_id=call.call_id, decision="approve", arguments=edit),
    )
    case = Case(
        version=1,
        id="original",
        run_id="1",
        agent="a",
        input=StartInput(agent="a", prompt="Go."),
        instructions=run.instructions,
        tools=run.tools,
        output="done",
        status="completed",
        settings=CaseSettings(model="scripted:m", max_steps=9),
        messages=run.messages,
        steps=run.steps,
    )
    again = await run_agent(agent, case.run_input(), model=ScriptedModel(first, "done"))
    assert [call.recorded for call in again.calls] == [True]
    assert len(set(run.steps[0].tool_calls[0].argument_digests)) == 2
    assert again.steps[0].tool_calls[0].argument_digests == run.steps[0].tool_calls[0].argument_digests


def test_the_key_of_a_rule_is_that_of_its_equal_calls() -> None:
    keys = set()
    for way in WAYS:
        found = accepted(ship.arguments, way)
        assert isinstance(found, ValidArguments)
        keys.add(Rule(name="r", agent="a", tool="ship", arguments=found.arguments, digest=found.digest, at="now").key)
    assert len(keys) == 1
