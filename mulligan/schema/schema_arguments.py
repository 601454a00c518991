"""The arguments of a tool whose type is a JSON schema, and not a function's signature."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from pydantic import JsonValue

from mulligan.schema.json_schema import NotOfSchema, schema_faults, schema_validator
from mulligan.schema.schema_cost import check_size, is_cheap
from mulligan.schema.schema_defaults import without_defaults
from mulligan.schema.subschemas import check_references
from mulligan.schema.tool_schema import provider_schema

FaultsBy = Callable[[dict[str, Any], JsonValue], list[tuple[str, str]]]


@dataclass(frozen=True)
class SchemaArguments:
    """Arguments by a JSON schema. Valid ones are passed on as the model wrote them, or as they were converted."""

    schema: dict[str, Any]
    """The schema that the model gets. That of the validator may accept less."""
    validator: Any = None
    """None: any object is valid."""
    check_isolated: FaultsBy | None = None
    """Finds the faults of a value by a schema in a process of its own, where that may take long."""

    @classmethod
    def declared(cls, schema: Any) -> SchemaArguments:
        """The arguments by the schema that a user declares.

        Raises:
            TypeError: it cannot be used; the message continues a sentence that names the schema.
        """
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"is not JSON: {error}.") from error
        return cls(*_parsed(text))

    @property
    def blocks(self) -> bool:
        """Whether `validate` may wait for a child process, so that it must run in a thread."""
        return self.check_isolated is not None

    @property
    def conversion_schema(self) -> dict[str, Any]:
        """The schema by which they are converted: the one by which they are validated."""
        return self.schema if self.validator is None else cast("dict[str, Any]", self.validator.schema)

    @property
    def coerces(self) -> bool:
        """Whether `validate` also accepts values of other types: it never does."""
        return False

    @property
    def required(self) -> list[str]:
        """The names of the required fields."""
        return list(self.schema.get("required", []))

    @property
    def context_parameter(self) -> str:
        """The parameter of the tool's function that gets the context."""
        return "ctx"

    def validate(self, value: JsonValue) -> dict[str, Any]:
        """Return the arguments.

        Raises:
            NotOfSchema: they do not match the schema.
        """
        faults: list[tuple[str, str]] = []
        if self.validator is not None:
            if self.check_isolated is None or is_cheap(self.validator.schema, value):
                faults = schema_faults(self.validator, value)
            else:
                faults = self.check_isolated(self.validator.schema, value)
        if faults:
            raise NotOfSchema(faults)
        if not isinstance(value, dict):
            raise NotOfSchema([("", "should be an object")])
        return value

    def to_json(self, validated: dict[str, Any]) -> JsonValue:
        """Return the arguments unchanged."""
        return cast(JsonValue, validated)

    def normal_form(self, validated: dict[str, Any], recorded: JsonValue, written: JsonValue) -> JsonValue:  # noqa: ARG002
        """The arguments without what equals the defaults that the schema states."""
        return without_defaults(self.conversion_schema, recorded)

    def bind(self, values: dict[str, Any], context: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments and the context, as the positional arguments of the tool's function."""
        return [values, context], {}


ANY_OBJECT = SchemaArguments({"type": "object", "properties": {}})


@lru_cache(maxsize=1_000)
def validator_of(schema: str) -> Any:
    """The validator for a schema as JSON."""
    return schema_validator(json.loads(schema))


@lru_cache(maxsize=1_000)
def _parsed(text: str) -> tuple[dict[str, Any], Any]:
    """The schema that the model gets in place of a declared one, and the validator. A function may declare it for each run.

    Raises:
        TypeError: as `SchemaArguments.declared`.
    """
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise TypeError("is not an object; give a JSON Schema as a dict.")
    check_size(schema)
    validator = validator_of(text)
    check_references(schema)
    kinds = schema.get("type", "object")
    if kinds != "object" and "object" not in kinds:
        raise TypeError(f"is of type {kinds!r}, but the arguments of a call are an object.")
    for_model = provider_schema(schema)
    check_size(for_model)
    return for_model, validator
