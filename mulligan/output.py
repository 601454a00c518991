"""Structured output: the type of a run's answer, and the strategy by which the model is made to give it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, overload

from pydantic import BaseModel, ConfigDict, JsonValue, PydanticUserError, TypeAdapter, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import to_jsonable_python

from mulligan.errors import StructuredOutputValidationError
from mulligan.model_name import ModelName
from mulligan.policy import HandleErrors
from mulligan.schema.json_schema import (
    MarkedJsonSchema,
    NotOfSchema,
    first_sentence,
    schema_faults,
    schema_validator,
    tidy_schema,
)
from mulligan.schema.ordered_sets import with_ordered_sets
from mulligan.schema.subschemas import References, check_depth, check_references, with_changed_parts
from mulligan.schema.typed_dicts import replace_typed_dicts
from mulligan.values import OutputT, RunResult

__all__ = ["NotOfSchema", "Output", "OutputType", "ProviderStrategy", "ToolStrategy", "output_of", "with_typed_output"]

T = TypeVar("T")
Strategy = Literal["tool", "provider"]

TEXT = "str"
"""The name of the output type of a plain text, where that is one of several."""
_VALUE = "value"


@dataclass(frozen=True, eq=False)
class ToolStrategy(Generic[OutputT]):
    """The model gives its answer as the arguments of an output tool: one tool for each member of a union.

    Args:
        schema: A pydantic model, dataclass, TypedDict, a union of them, or a JSON schema as a dict, or a list of these,
            whose titles are the names of the tools.
        handle_errors: The policy for an output that is not valid; the agent's where None.
        tool_message_content: The text of the output call's result, for later turns of the conversation.
        or_text: Whether the model may also give its answer as plain text, which is the output then.
    """

    schema: type[OutputT] | UnionType | Mapping[str, Any] | list[dict[str, Any]]
    handle_errors: HandleErrors | None = None
    tool_message_content: str | None = None
    or_text: bool = False


@dataclass(frozen=True, eq=False)
class ProviderStrategy(Generic[OutputT]):
    """The provider makes the model write its answer to the JSON schema, in strict form where the schema allows that.

    Args:
        schema: A pydantic model, dataclass, TypedDict, a union of them, or a JSON schema as a dict.
        handle_errors: The policy for an output that is not valid; the agent's where None.
    """

    schema: type[OutputT] | UnionType | Mapping[str, Any]
    handle_errors: HandleErrors | None = None


@dataclass(frozen=True, eq=False)
class OutputType:
    """One type of output. A type that is not an object (a list, a number) is wrapped in one, as providers need objects."""

    name: str
    description: str
    schema: dict[str, Any]
    is_wrapped: bool
    conversion_schema: dict[str, Any]
    _adapter: TypeAdapter[Any] | None
    _validator: Any = None

    @property
    def blocks(self) -> bool:
        """Whether `validate` waits for another process: it never does."""
        return False

    @property
    def coerces(self) -> bool:
        """Whether `validate` also accepts values of other types, as pydantic does."""
        return self._adapter is not None

    @property
    def required(self) -> list[str]:
        """Names of the fields that have no default."""
        return list(self.schema.get("required", []))

    def validate(self, value: JsonValue) -> Any:
        """Validate a JSON value and convert it to Python's types, still wrapped.

        Raises:
            pydantic.ValidationError, NotOfSchema: it is not valid; and whatever a user's own validators raise.
        """
        if self._adapter is not None:
            return self._adapter.validate_json(json.dumps(value))
        faults = schema_faults(self._validator, value)
        if not faults and not isinstance(value, dict):
            faults = [("", "should be of type object")]
        if faults:
            raise NotOfSchema(faults)
        return value

    def read(self, output: JsonValue) -> Any:
        """An output, as it is in a run's result, as an object of Python.

        Raises:
            ValueError: it is not valid; and whatever a user's own validators raise.
        """
        if not self.is_wrapped:
            return self.validate(output)
        wrapped = self.validate({_VALUE: output})
        return getattr(wrapped, _VALUE) if isinstance(wrapped, BaseModel) else wrapped[_VALUE]

    def to_json(self, validated: Any) -> JsonValue:
        """A value that `validate` returned, as JSON with its defaults: the form in a run's result. Sets are sorted."""
        if self._adapter is None:
            return validated  # type: ignore[no-any-return]
        written = self._adapter.dump_python(validated, mode="json", by_alias=True, warnings="error")
        return with_ordered_sets(validated, written)  # type: ignore[no-any-return]

    def normal_form(self, validated: Any, recorded: JsonValue, written: JsonValue) -> JsonValue:  # noqa: ARG002
        """The output as it is recorded, with its defaults: so outputs are compared."""
        return recorded


@dataclass(frozen=True, eq=False)
class Output:
    """The declared output of an agent. `types` are a union's members, each a tool; `whole` is all of it in one schema.

    `or_text`: whether plain text is an output too.
    """

    types: tuple[OutputType, ...]
    whole: OutputType
    strategy: Strategy | None = None
    handle_errors: HandleErrors | None = None
    tool_message_content: str | None = None
    or_text: bool = False

    @classmethod
    def from_declaration(cls, given: Any) -> Output:
        """Parse the `output` of an `Agent`.

        Raises:
            TypeError: no JSON schema can be made of it, or two members have one name: one sentence.
        """
        strategy: Strategy | None = None
        content = None
        if isinstance(given, ToolStrategy):
            strategy, content = "tool", given.tool_message_content
        elif isinstance(given, ProviderStrategy):
            strategy = "provider"
        schema = given.schema if isinstance(given, (ToolStrategy, ProviderStrategy)) else given
        members = _members(schema)
        types = [_type(member) for member in members]
        if len(types) > 1 and any(each.is_wrapped for each in types):
            types = [_type(schema)]  # `Order | None`, `int | str`: one tool for all of it
        names = [each.name for each in types]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TypeError(f"two types of its output are named {twice[0]!r}; give one another name.")
        whole = types[0] if len(types) == 1 else _type(schema)
        or_text = isinstance(given, ToolStrategy) and given.or_text
        return cls(tuple(types), whole, strategy, getattr(given, "handle_errors", None), content, or_text)

    def strategy_for(self, model: str) -> Strategy:
        """The strategy for a model (`provider:NAME`): the declared one; otherwise by what its provider supports."""
        if self.strategy is not None:
            return self.strategy
        return "provider" if ModelName.parse(model).traits.writes_to_schema and len(self.types) == 1 else "tool"

    def type_named(self, name: str) -> OutputType | None:
        """The member whose tool has that name."""
        return next((each for each in self.types if each.name == name), None)

    def read(self, name: str | None, output: JsonValue) -> Any:
        """A run's output as an object of Python. `name`: that of its type; None: it is not known.

        Raises:
            ValueError: it is not valid; and whatever a user's own validators raise.
        """
        if self.or_text and name == TEXT:
            return output
        return (self.type_named(name or "") or self.whole).read(output)


@overload
def output_of(result: RunResult | Mapping[str, Any], schema: type[T]) -> T: ...
@overload
def output_of(result: RunResult | Mapping[str, Any], schema: Any) -> Any: ...
def output_of(result: RunResult | Mapping[str, Any], schema: Any) -> Any:
    """A run's structured output as a Python object. It may be called in a workflow as well.

    Args:
        result: A RunResult, or its JSON as any Temporal client gets it.
        schema: The agent's `output`: a type, a union (the member that the model chose is returned), or a dict.

    Raises:
        StructuredOutputValidationError: the run did not complete (`missing_output`), or its output is
            not valid (`invalid_output`).
    """
    run = result if isinstance(result, RunResult) else RunResult.model_validate(result)
    return _typed_output(run, Output.from_declaration(schema))


def with_typed_output(result: RunResult[Any], output: Output | None) -> RunResult[Any]:
    """The result with its output as an object of the declared type; unchanged where the run did not complete.

    Raises:
        StructuredOutputValidationError: the output is not valid (`invalid_output`).
    """
    if output is None or result.status != "completed":
        return result
    return result.model_copy(update={"output": _typed_output(result, output)})


def _typed_output(run: RunResult[Any], output: Output) -> Any:
    kind = output.type_named(run.output_type or "") or output.whole
    if run.status != "completed":
        raise StructuredOutputValidationError(
            f"The run ended as {run.status!r}, so it has no {kind.name}.", kind="missing_output", tool_name=kind.name
        )
    as_json = to_jsonable_python(run.output, by_alias=True)  # of a typed result it is an object already
    try:
        return output.read(run.output_type, as_json)
    except ValueError as error:
        raise StructuredOutputValidationError(
            f"The run's output is not a {kind.name}: {error}", kind="invalid_output", tool_name=kind.name, source=error
        ) from error


def unwrap(kind: OutputType, value: JsonValue) -> JsonValue:
    """A valid value of a type as it is in a run's result: without the object that wraps it."""
    return value[_VALUE] if kind.is_wrapped and isinstance(value, dict) else value


def _members(schema: Any) -> list[Any]:
    """A union's members, also where it is `Annotated` (with a discriminator); a single type is its only one."""
    if isinstance(schema, list):
        return schema
    bare = get_args(schema)[0] if get_origin(schema) is Annotated else schema
    return list(get_args(bare)) if get_origin(bare) in (Union, UnionType) else [schema]


def _type(schema: Any) -> OutputType:
    if isinstance(schema, list):  # each schema's references lead to its own parts
        schema = {"type": "object", "anyOf": [{"$id": f"urn:mulligan:{n}", **each} for n, each in enumerate(schema)]}
    if isinstance(schema, dict):
        try:
            check_depth(schema)
            return _of_json_schema(schema)
        except TypeError as error:
            raise TypeError(f"its output {error}") from error
    name = _legal(getattr(schema, "__name__", "")) if len(_members(schema)) == 1 else "output"
    readable_type = replace_typed_dicts(schema)
    try:
        adapter = TypeAdapter(readable_type)
        for_model = _with_target_at_root(adapter.json_schema(by_alias=True))
        is_wrapped = for_model.get("type") != "object"
        if is_wrapped:
            # A model, so that pydantic's errors have the paths and discriminators of one.
            holder = create_model(name, __config__=ConfigDict(extra="forbid"), value=(readable_type, ...))
            adapter = TypeAdapter(holder)
            for_model = adapter.json_schema(by_alias=True)
    except (PydanticSchemaGenerationError, PydanticUserError, ValueError, TypeError) as error:
        raise TypeError(f"no JSON schema can be made of its output {schema!r}: {first_sentence(error)}") from error
    marked = _with_target_at_root(adapter.json_schema(by_alias=True, schema_generator=MarkedJsonSchema))
    return OutputType(name, str(for_model.get("description", "")), tidy_schema(for_model), is_wrapped, marked, adapter)


def _of_json_schema(schema: dict[str, Any]) -> OutputType:
    is_wrapped = schema.get("type", "object" if "properties" in schema else None) != "object"
    checked_by = schema
    if is_wrapped:
        # Definitions are at the root in the form that strict mode accepts; references may lead to them there.
        moved = ("$defs", "definitions", "$schema") if "$id" not in schema else ("$schema",)
        inner = {key: value for key, value in _moved(schema).items() if key not in moved}
        for_model = _wrapping(inner) | {key: value for key, value in _moved(schema).items() if key in moved}
        # With an address of its own, a schema's references lead to its own parts wherever it is.
        checked_by = _wrapping({"$id": "urn:mulligan:output", **schema})
    else:
        for_model = {"type": "object", **schema}
    validator = schema_validator(checked_by)
    check_references(checked_by)
    name = _legal(str(schema.get("title", "output")))
    return OutputType(name, str(schema.get("description", "")), for_model, is_wrapped, checked_by, None, validator)


def _wrapping(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE], "additionalProperties": False}


def _moved(schema: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema that is wrapped, with its references to the schema's root, or to places below it, adapted."""
    moved = with_changed_parts(schema, _moved)
    reference = str(schema.get("$ref", ""))
    if reference == "#" or (reference.startswith("#/") and not reference.startswith(("#/$defs/", "#/definitions/"))):
        moved["$ref"] = f"#/properties/{_VALUE}{reference[1:]}"
    return moved


def _legal(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64] or "output"


def _with_target_at_root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type that contains itself, whose root pydantic writes as a reference, with its target at the root."""
    return References(schema).followed(schema)
