"""Preparing a call: whatever the model wrote becomes valid arguments, repaired ones, or a typed error."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_core import to_json

from mulligan import Agent, InvalidToolInput, Tool, ToolCallError, tool
from mulligan.activities.answers.prepare_call import ValidArguments, valid
from mulligan.output import NotOfSchema, Output
from tests.support import prepare_one_call
from tests.support.examples import examples
from tests.support.prepare_one_call import count, say

GARBAGE = settings(derandomize=True, deadline=None, max_examples=examples(100), suppress_health_check=list(HealthCheck))


class Customer(BaseModel):
    name: Annotated[str, Field(min_length=1, alias="fullName")]
    born: date | None = None

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        if name == "nobody":
            raise ValueError(f"no customer is named {name}")
        if name == "crash":
            raise KeyError(name)
        return name


@tool
def order(customer: Customer, size: Literal["s", "l"] = "s", count: int = 1, password: SecretStr | None = None) -> str:
    """Order."""
    return ""


def agent(*tools: Tool, **options: Any) -> Agent:
    return Agent(name="a", model="scripted:x", tools=tools or (order, say, count), **options)


async def look(name: str, raw: str, of: Agent | None = None) -> ValidArguments | ToolCallError:
    return await prepare_one_call.look(name, raw, of or agent())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["text", "customer", "size", "numbers"]) | st.text(), inner)
    ),
    max_leaves=10,
)
RAW = st.text() | VALUES.map(json.dumps) | VALUES.map(repr) | VALUES.map(lambda value: json.dumps(value)[:-1])


@GARBAGE
@given(name=st.sampled_from(["order", "say", "count"]) | st.text(), raw=RAW)
def test_preparing_any_arguments_gives_valid_ones_or_a_tool_call_error(name: str, raw: str) -> None:
    """Nothing else is raised or returned."""
    done = asyncio.run(look(name, raw))
    if isinstance(done, ToolCallError):
        assert done.kind in {"unknown_tool", "invalid_json", "invalid_arguments"}
        assert done.text.encode()
        assert json.dumps(done.to_json())
    else:
        known = agent().tool(name)
        assert known is not None
        known.arguments.validate(done.arguments)


SECRET = "tOpSeCrEt"
WITH_SECRET = st.recursive(
    st.just(SECRET),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(
            st.sampled_from(["customer", "fullName", "size", "text", "born", "numbers"]), inner, min_size=1
        )
    ),
    max_leaves=5,
)


@GARBAGE
@given(name=st.sampled_from(["order", "say", "count"]), value=WITH_SECRET, cut=st.integers(0, 12))
def test_the_message_quotes_no_input(name: str, value: Any, cut: int) -> None:
    """Spans contain the message; the text for the model may quote values."""
    raw = json.dumps(value)
    done = asyncio.run(look(name, raw[: len(raw) - cut]))
    if isinstance(done, ToolCallError):
        assert SECRET not in done.message


async def test_a_validator_text_that_quotes_the_input_is_in_the_detail_only() -> None:
    error = await look("order", '{"customer": {"fullName": "nobody"}}')
    assert isinstance(error, ToolCallError)
    assert "- `customer.fullName`: is not valid" in error.message
    assert "no customer is named nobody" in error.text
    assert "nobody" not in error.message


async def test_a_validator_that_raises_makes_the_arguments_invalid() -> None:
    error = await look("order", '{"customer": {"fullName": "crash"}}')
    assert isinstance(error, ToolCallError)
    assert (error.kind, "raised KeyError" in error.text) == ("invalid_arguments", True)


@pytest.mark.parametrize(
    ("name", "raw", "arguments", "by"),
    [
        ("say", '{"text": "a"}', {"text": "a"}, []),
        ("order", '{"customer": {"fullName": "A", "born": "2000-01-02"}, "count": "3"}',
         {"customer": {"fullName": "A", "born": "2000-01-02"}, "count": 3}, ["schema:integer"]),
        ("order", '{"customer": {"fullName": "A"}, "password": "x"}', {"customer": {"fullName": "A"}, "password": "x"}, []),
        ("say", "{'text': 'a'}", {"text": "a"}, ["json:single_quotes"]),
        ("say", '{"text": "a"', {"text": "a"}, ["json:missing_closers"]),
        ("say", '"{\\"text\\": \\"a\\"}"', {"text": "a"}, ["json:double_encoded"]),
        ("say", '"a"', {"text": "a"}, ["bare_value"]),
        ("count", "[1, 2]", {"numbers": [1, 2]}, ["bare_value"]),
    ],
)  # fmt: skip
async def test_arguments_are_read_and_their_repairs_recorded(
    name: str, raw: str, arguments: Any, by: list[str]
) -> None:
    """Arguments have the form of their types."""
    done = await look(name, raw)
    assert isinstance(done, ValidArguments)
    assert (done.arguments, [repair.by for repair in done.repairs]) == (arguments, by)


@pytest.mark.parametrize(
    "raw", ['{"text": "a', '{"text": ', '{"te', "I will say a", '{"text": "a"} {"text": "b"}', "5"]
)
async def test_ambiguous_or_truncated_arguments_are_not_guessed(raw: str) -> None:
    """The model gets feedback."""
    assert isinstance(await look("say", raw), ToolCallError)


def fixed(invalid: InvalidToolInput) -> object:
    return {"text": "fixed"}


async def fixed_later(invalid: InvalidToolInput) -> object:
    await asyncio.sleep(0)
    return '{"text": "fixed"}'


async def hangs(invalid: InvalidToolInput) -> object:
    await asyncio.sleep(60)
    return fixed(invalid)


def raises(invalid: InvalidToolInput) -> object:
    raise RuntimeError("no idea")


def rubbish(invalid: InvalidToolInput) -> object:
    return object()


def invalid_too(invalid: InvalidToolInput) -> object:
    return {"txt": 1}


def none(invalid: InvalidToolInput) -> object:
    return None


@pytest.mark.parametrize(
    ("fix", "repair", "by"),
    [(fixed, none, "fix"), (fixed_later, raises, "fix"), (none, fixed, "repair")]
    + [(bad, fixed, "repair") for bad in (raises, rubbish, invalid_too, hangs)]
    + [(bad, bad, "") for bad in (raises, rubbish, invalid_too, none)],
)
async def test_a_fixer_that_fails_hangs_or_returns_invalid_arguments_is_skipped(
    fix: Any, repair: Any, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixer of the tool is asked before that of the agent."""
    monkeypatch.setattr(prepare_one_call, "FIXER_LIMIT", 0.2)
    done = await look("say", '{"words": "a"}', agent(tool(name="say", fix=fix)(say.function), repair=repair))
    if not by:
        assert isinstance(done, ToolCallError)
        return
    assert isinstance(done, ValidArguments)
    [repaired] = done.repairs
    assert (repaired.by, repaired.before, repaired.after) == (by, {"words": "a"}, {"text": "fixed"})


async def test_a_fixer_may_return_a_model_with_any_type_that_json_has_a_form_for() -> None:
    """By the names that the model of the tool's arguments has."""

    class Ordered(BaseModel):
        customer: Customer

    ada = Ordered(customer=Customer.model_validate({"fullName": "Ada", "born": date(1815, 12, 10)}))
    done = await look("order", '{"buyer": "Ada"}', agent(order, repair=lambda _: ada))
    assert isinstance(done, ValidArguments)
    assert done.arguments == {"customer": {"fullName": "Ada", "born": "1815-12-10"}}
    assert [each.by for each in done.repairs] == ["repair"]


async def test_a_fixer_gets_the_raw_text_the_parsed_value_the_error_and_the_schema() -> None:
    """The raw text, what could be read of it, the typed error, the schema."""
    seen: list[InvalidToolInput] = []
    fixing = agent(tool(name="say", fix=lambda invalid: seen.append(invalid))(say.function))
    await look("say", '{"words": 1}', fixing)
    await look("say", '{"words', fixing)
    await look("say", "{'words': 1}", fixing)
    assert [(each.arguments, each.raw_arguments, each.error.kind) for each in seen] == [
        ({"words": 1}, '{"words": 1}', "invalid_arguments"),
        ('{"words', '{"words', "invalid_json"),
        ({"words": 1}, "{'words': 1}", "invalid_json"),
    ]
    assert seen[0].schema == say.schema
    assert seen[0].tool_name == "say"


@tool
def delete(days: float | None = None, kept: list[float] | None = None, secret: SecretStr | None = None) -> str:
    """Delete what is older; everything where `days` is None."""
    return ""


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ('{"days": "Infinity"}', "days"),
        ('{"days": "inf"}', "days"),
        ('{"days": "-inf"}', "days"),
        ('{"days": "nan"}', "days"),
        ('{"days": "1e999"}', "days"),
        ('{"days": 1, "kept": [1, "inf"]}', "kept[1]"),
        ("{'days': 'inf'}", "days"),
    ],
)
async def test_a_number_that_json_does_not_have_is_invalid(raw: str, path: str) -> None:
    """History would contain null in its place, and the tool would run with None."""
    error = await look("delete", raw, agent(delete))
    assert isinstance(error, ToolCallError)
    assert error.kind == ("invalid_json" if raw.startswith("{'") else "invalid_arguments")
    assert error.kind == "invalid_json" or f"`{path}` should be a finite number: JSON has no infinity" in error.message


async def test_a_fixer_cannot_put_in_a_number_that_json_does_not_have() -> None:
    error = await look("delete", '{"days": "x"}', agent(delete, repair=lambda invalid: {"days": "inf"}))
    assert isinstance(error, ToolCallError)
    assert error.kind == "invalid_arguments"


@pytest.mark.parametrize("raw", ['{"days": "inf", "secret": "a"}', '{"days": "1.5", "secret": "a"}'])
async def test_recorded_arguments_validate_to_what_was_validated(raw: str) -> None:
    """Also where a secret's value is kept as the model wrote it."""
    done = await look("delete", raw, agent(delete))
    if isinstance(done, ValidArguments):
        recorded = json.loads(to_json(done.arguments))
        assert delete.arguments.validate(recorded) == delete.arguments.validate(json.loads(raw))
    else:
        assert done.kind == "invalid_arguments"


class Forecast(BaseModel):
    days: float | None = None


def test_an_output_with_a_number_that_json_does_not_have_is_invalid() -> None:
    output = Output.from_declaration(Forecast).whole
    assert isinstance(valid(output, {"days": "inf"}), NotOfSchema)
    assert valid(output, {"days": "2"}) == {"days": 2}
