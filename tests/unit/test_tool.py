"""Declaring tools and agents: the schema for the model, and the errors of invalid declarations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from inline_snapshot import snapshot
from pydantic import AliasChoices, BaseModel, Field, SecretStr

from mulligan import Agent, DeclarationError, Tool, ToolContext, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    """Where it goes."""

    street: str
    number: Annotated[int, Field(ge=1)]


@dataclass
class Box:
    width: float = 1.0


@tool
async def ship(
    address: Address,
    ctx: ToolContext,
    colour: Colour = Colour.RED,
    speed: Literal["slow", "fast"] = "slow",
    when: date | None = None,
    boxes: list[Box] = [],  # noqa: B006 - as users write it
    schema: str = "",
) -> str:
    """Ship an order.

    It goes out the same day.

    Args:
        address: Where to.
        speed: How fast.
    """
    return f"{address.street} {colour} {speed} {when} {boxes} {schema}"


def test_the_schema_of_a_tool_follows_its_signature_and_docstring() -> None:
    """With nested models, enums, literals, unions and defaults, but without the context and titles."""
    assert (ship.name, ship.description) == ("ship", "Ship an order.\n\nIt goes out the same day.")
    assert ship.schema == snapshot(
        {
            "$defs": {
                "Address": {
                    "description": "Where it goes.",
                    "properties": {"street": {"type": "string"}, "number": {"minimum": 1, "type": "integer"}},
                    "required": ["street", "number"],
                    "type": "object",
                },
                "Box": {
                    "additionalProperties": False,
                    "properties": {"width": {"default": 1.0, "type": "number"}},
                    "type": "object",
                },
                "Colour": {"enum": ["red", "blue"], "type": "string"},
            },
            "additionalProperties": False,
            "properties": {
                "address": {"$ref": "#/$defs/Address", "description": "Where to."},
                "colour": {"$ref": "#/$defs/Colour", "default": "red"},
                "speed": {"default": "slow", "description": "How fast.", "enum": ["slow", "fast"], "type": "string"},
                "when": {"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}], "default": None},
                "boxes": {"default": [], "items": {"$ref": "#/$defs/Box"}, "type": "array"},
                "schema": {"default": "", "type": "string"},
            },
            "required": ["address"],
            "type": "object",
        }
    )


def test_a_tool_can_be_called_as_its_function() -> None:
    """From any code, with the same result."""

    @tool(name="add-up", description="Add.", timeout=timedelta(minutes=2), attempts=2, retry_on=OSError)
    def add(a: int, /, b: int = 1) -> int:
        return a + b

    assert isinstance(add, Tool)
    assert add(1, b=4) == 5
    assert (add.name, add.description, add.timeout.total_seconds(), add.retry_on) == ("add-up", "Add.", 120, (OSError,))
    arguments = add.arguments.validate({"a": "2"})
    assert add.arguments.bind(arguments, None) == ([2], {})


def test_the_default_timeout_is_ten_seconds_for_local_tools_and_a_minute_for_others() -> None:
    """If the declaration states none."""
    assert [tool(local=local)(ship.function).timeout.total_seconds() for local in (True, False)] == [10, 60]


def no_type(x):
    """No annotation."""


def star(*names: str) -> None:
    """A variable number."""


def unknown_type(x: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
    """A type that is nowhere."""


def no_schema(x: int, y: type[Any]) -> None:
    """Not JSON."""


def foreign(x: int, y: pytest.Item) -> None:
    """Not pydantic."""


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: tool(no_type), "tool 'no_type': parameter 'x' has no type; annotate it, as in `x: str`."),
        (lambda: tool(star), "tool 'star': parameter '*names' has no schema; name each parameter."),
        (lambda: tool(unknown_type), "tool 'unknown_type': the type 'Missing' in its signature is not defined"),
        (lambda: tool(no_schema), "tool 'no_schema': no JSON schema can be made of parameter 'y'"),
        (lambda: tool(foreign), "tool 'foreign': no JSON schema can be made of parameter 'y'"),
        (lambda: tool(name="not legal")(ship.function), "tool 'not legal': name must be 1 to 64 letters"),
        (lambda: tool(timeout=0)(ship.function), "timeout must be more than 0 seconds"),
        (
            lambda: tool(local=True, timeout=11)(ship.function),
            "a local tool may take 10 s at most, but timeout is 11 s; give a shorter one",
        ),
        (lambda: tool(local=True, task_queue="gpu")(ship.function), "local and task_queue exclude each other"),
        (lambda: tool(attempts=0)(ship.function), "attempts must be 1 or more"),
        (lambda: tool(retry_on="OSError")(ship.function), "retry_on must be exception types"),  # type: ignore[call-overload]
        (lambda: Agent(name="a", model="gpt-5"), "agent 'a': the model is 'gpt-5'; it must be one of openai:NAME"),
        (lambda: Agent(name="", model="openai:x"), "an agent has no name"),
        (
            lambda: Agent(name="a", model="openai:x", tools=[no_type]),  # type: ignore[list-item]
            "tools[0] (no_type) is not a tool; declare it with",
        ),
        (lambda: Agent(name="a", model="openai:x", tools=[ship, ship]), "agent 'a': two tools are named 'ship' (in "),
        (lambda: Agent(name="a", model="openai:x", max_steps=0), "max_steps is 0; it must be 1 or more"),
        (lambda: Agent(name="a", model="openai:x", model_settings={"stream": True}), "may not set stream"),
    ],
)
def test_a_bad_declaration_names_the_fault(declare: Any, says: str) -> None:
    """In one sentence with the file and the name."""
    with pytest.raises(DeclarationError) as raised:
        declare()
    assert says in str(raised.value)
    assert __file__ in str(raised.value)
    assert "\n" not in str(raised.value)


def test_parameters_may_have_names_that_pydantic_uses() -> None:
    """Such as `schema`, `copy` and `model_config`."""

    @tool
    def odd(copy: int, model_config: str, json: bool = False, _private: int = 0) -> None:
        """Odd."""

    arguments = odd.arguments.validate({"copy": 1, "model_config": "x", "_private": 3})
    assert odd.arguments.bind(arguments, None)[1] == {"copy": 1, "model_config": "x", "_private": 3}
    assert odd.arguments.required == ["copy", "model_config"]


def test_secret_arguments_keep_their_value() -> None:
    """`SecretStr` is serialised as asterisks, but the tool gets the model's value."""

    @tool
    def log_in(password: SecretStr) -> None:
        """Log in."""

    from mulligan.activities.answers.prepare_call import valid

    assert valid(log_in.arguments, {"password": "sesame"}) == {"password": "sesame"}


def test_a_parameter_alias_is_the_name_that_the_model_uses() -> None:
    """Both `alias` and `validation_alias`."""

    @tool
    def send(
        to: Annotated[str, Field(alias="recipient")],
        text: Annotated[str, Field(validation_alias="body")],
        copies: Annotated[int, Field(validation_alias=AliasChoices("copies", "times"))] = 1,
    ) -> None:
        """Send."""

    assert list(send.schema["properties"]) == ["recipient", "body", "copies"]
    validated = send.arguments.validate({"recipient": "Ada", "body": "Hi", "times": 2})
    assert send.arguments.bind(validated, None) == ([], {"to": "Ada", "text": "Hi", "copies": 2})
    assert send.arguments.to_json(validated) == {"recipient": "Ada", "body": "Hi", "copies": 2}


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}, "#/$defs/x"),
        ({"$ref": "#/$defs/x"}, "#/$defs/x"),
        ({"type": "array", "items": {"$ref": "http://localhost:1/a.json"}}, "http://localhost:1/a.json"),
    ],
)
def test_an_output_whose_reference_leads_nowhere_is_refused_at_declaration(
    schema: dict[str, Any], reference: str
) -> None:
    with pytest.raises(DeclarationError) as error:
        Agent(name="a", model="openai:x", output=schema)
    assert f"its reference {reference!r} leads nowhere" in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
        {"type": "object", "properties": {"$ref": {"const": {"$ref": "#/nowhere"}}, "a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}},
    ],
)
def test_an_output_whose_references_lead_to_schemas_is_accepted(schema: dict[str, Any]) -> None:
    assert Agent(name="a", model="openai:x", output=schema).declared_output
