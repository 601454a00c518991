"""Repairs of arguments in their order, fixers, types of arguments, and random structured arguments."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from mulligan import Agent, InvalidToolInput, Tool, ToolCallError, tool
from mulligan.activities.answers.prepare_call import ValidArguments
from tests.support import prepare_one_call
from tests.support.prepare_one_call import count, say


class Speed(Enum):
    FAST = "fast"


class Back(BaseModel):
    inside: Annotated[int, Field(validation_alias="in", serialization_alias="out")]


def agent(*tools: Tool, **options: Any) -> Agent:
    return Agent(name="a", model="scripted:x", tools=tools or (say, count, take_times, take_values), **options)


async def look(name: str, raw: str, of: Agent | None = None) -> ValidArguments | ToolCallError:
    return await prepare_one_call.look(name, raw, of or agent())


DEEP = "[" * 100_000
GARBAGE_TEXTS = {
    "every type": ["null", "true", "0", "-1.5", '""', '"x"', "[]", "[[]]", "{}", '{"": {}}', '{"text": null}', '{"text": {}}'],
    "numbers": ["1e999", "-1e999", "NaN", "Infinity", '{"text": NaN}', "9" * 5_000, '{"count": 1e400}', "-0", "1_000"],
    "deep": [DEEP, DEEP + "]" * 100_000, '{"a":' * 50_000, '{"numbers": ' + "[" * 101 + "]" * 101 + "}", "(" * 10_000],
    "characters": ["\0", '"\0"', '{"text": "\0"}', "\ufeff{}", '{"text": "\\ud800"}', '{"\\udfff": 1}', "\ud800", "\u2028", "\x1b[0m"],
    "large": ["x" * 3_000_000, json.dumps({"text": "x" * 3_000_000}), json.dumps({"x" * 100_000: 1}), "{" * 3_000_000],
}  # fmt: skip


@pytest.mark.parametrize("texts", GARBAGE_TEXTS.values(), ids=GARBAGE_TEXTS.keys())
async def test_random_structured_arguments_are_accepted_or_refused_and_never_raise(texts: list[str]) -> None:
    """Random text rarely has such structures."""
    for raw in texts:
        for name in ("take_times", "take_values", "say", "count"):
            done = await look(name, raw)
            assert (done.text if isinstance(done, ToolCallError) else json.dumps(done.arguments)).encode()


@tool
def free(words: str = "") -> str:
    """Free."""
    return words


@pytest.mark.parametrize("raw", ["", " ", "\n\t"])
async def test_empty_arguments_are_read_as_an_empty_object(raw: str) -> None:
    """Feedback says so if fields are required."""
    done = await look("free", raw, agent(free))
    assert isinstance(done, ValidArguments)
    assert done.arguments == {}
    assert [repair.model_dump() for repair in done.repairs] == [{"by": "empty_arguments", "before": raw, "after": {}}]
    error = await look("say", raw)
    assert isinstance(error, ToolCallError)
    assert (error.kind, "- `text`: is required" in error.message) == ("invalid_arguments", True)


@tool
def two(left: int, right: int) -> str:
    """Two."""
    return ""


@pytest.mark.parametrize(
    ("of", "raw", "before", "by", "arguments"),
    [
        (free, "", "", "empty_arguments", {}),
        (say, "{text: 'a',}", "{text: 'a',}", "json:", {"text": "a"}),
        (say, "{txt: 'a'}", {"txt": "a"}, "fix", {"text": "fixed"}),
        (count, '["x",]', ["x"], "fix", {"numbers": [0]}),
        (say, '"a"', "a", "bare_value", {"text": "a"}),
        (say, "5", 5, "fix", {"text": "fixed"}),
        (say, "", {}, "fix", {"text": "fixed"}),
        (say, "no JSON", "no JSON", "fix", {"text": "fixed"}),
        (two, "5", 5, "fix", {"left": 1, "right": 2}),
    ],
)
async def test_the_first_repair_whose_outcome_validates_is_used(
    of: Tool, raw: str, before: Any, by: str, arguments: Any
) -> None:
    """Those before it are not recorded, and those after it are not tried."""
    known = {"free": {}, "say": {"text": "fixed"}, "count": {"numbers": [0]}, "two": {"left": 1, "right": 2}}

    def fix(invalid: InvalidToolInput) -> object:
        return known[invalid.tool_name]

    never_asked: Any = None
    done = await look(of.name, raw, agent(tool(name=of.name, fix=fix)(of.function), repair=never_asked))
    assert isinstance(done, ValidArguments)
    [repaired] = done.repairs
    assert (repaired.by.startswith(by), repaired.before, repaired.after) == (True, before, arguments)
    assert done.arguments == arguments


class Words(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (Words(text="a"), {"text": "a"}),
        ('{"text": "a"}', {"text": "a"}),
        ({"text": "a", "more": 1}, None),
        ("{'text': 'a'}", None),
        ("", None),
        ([], None),
        (False, None),
        ({"text": float("nan")}, None),
        ({"text": "\ud800"}, {"text": "\ufffd"}),
        ({"text": b"a"}, None),
        ({1: {2, 3}}, None),
        (lambda: 10**5_000, None),
    ],
)
async def test_the_result_of_a_fixer_is_used_only_if_it_is_valid(given: Any, taken: Any) -> None:
    done = await look("say", "{}", agent(say, repair=lambda _: given() if callable(given) else given))
    assert (done.arguments if isinstance(done, ValidArguments) else None) == taken


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError()], ids=repr)
async def test_an_exit_or_cancellation_in_a_fixer_does_not_end_the_worker(raised: BaseException) -> None:
    """The same as for tools."""

    def ends(invalid: InvalidToolInput) -> object:
        raise raised

    assert isinstance(await look("say", "{}", agent(say, repair=ends)), ToolCallError)


@tool
def take_times(when: datetime, span: timedelta, either: int | date | None) -> str:
    """Take times."""
    return ""


@tool
def take_values(
    price: Decimal,
    pair: tuple[int, str],
    tags: set[str],
    blob: bytes,
    speed: Speed,
    who: Annotated[str, Field(alias="fullName")],
    back: Back,
) -> str:
    """Take values."""
    return ""


TIMES = {"when": "2026-01-02T03:04:05Z", "span": "PT90S", "either": "2026-01-02"}
VALUES = {
    **{"price": "1.10", "pair": ["1", "a"], "tags": ["x"], "blob": "b", "speed": "fast"},
    **{"fullName": "Ann", "back": {"in": 5}},
}


@pytest.mark.parametrize(
    ("taker", "sent", "by", "values"),
    [
        (
            take_times,
            TIMES,
            [],
            {
                "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
                "span": timedelta(seconds=90),
                "either": date(2026, 1, 2),
            },
        ),
        (
            take_values,
            VALUES,
            ["schema:integer"],
            {
                **{"price": Decimal("1.10"), "pair": (1, "a"), "tags": {"x"}, "blob": b"b", "speed": Speed.FAST},
                **{"who": "Ann", "back": Back(**{"in": 5})},
            },
        ),
    ],
    ids=["times", "values"],
)
async def test_prepared_arguments_are_read_to_the_same_values(
    taker: Tool, sent: dict[str, Any], by: list[str], values: dict[str, Any]
) -> None:
    """The worker that runs the tool reads the prepared arguments again."""
    done = await look(taker.name, json.dumps(sent), agent(taker))
    assert isinstance(done, ValidArguments)
    assert [repair.by for repair in done.repairs] == by
    assert json.loads(json.dumps(done.arguments)) == done.arguments
    _, read = taker.arguments.bind(taker.arguments.validate(done.arguments), None)
    assert read == values


@tool
def weigh(weights: dict[str, float]) -> str:
    """Weigh."""
    return ""


async def test_the_fixer_of_the_tool_is_asked_before_that_of_the_agent() -> None:
    """Only one of them repairs the call."""
    mends = tool(name="say", fix=lambda _: {"text": "by the tool"})(say.function)
    done = await look("say", "{}", agent(mends, repair=lambda _: {"text": "by the agent"}))
    assert isinstance(done, ValidArguments)
    assert (done.arguments, [repair.by for repair in done.repairs]) == ({"text": "by the tool"}, ["fix"])


async def test_an_object_is_not_wrapped_as_a_bare_value() -> None:
    """It may be arguments with a wrong name."""
    assert isinstance(await look("weigh", '{"weight": 1}', agent(weigh)), ToolCallError)


async def test_a_fixer_result_that_is_not_json_is_refused() -> None:
    given = {"weights": {"a": float("nan")}}
    assert isinstance(await look("weigh", "{}", agent(weigh, repair=lambda _: given)), ToolCallError)
