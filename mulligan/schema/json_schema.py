"""JSON schemas: those that a user or a server gives as a dict, and those that pydantic generates."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

from pydantic import JsonValue
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from mulligan.schema.cut_text import beginning
from mulligan.schema.subschemas import with_changed_parts

_MAX_FAULTS = 100
_LONGEST_WANTED = 2_000
_MORE_NAMES = frozenset(
    {
        *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("patternProperties", "dependentSchemas", "dependencies"),
    }
)
"""Keywords by which an object may have properties that `properties` does not name."""
NOT_AT_RUN_TIME = (
    "is not defined in its module at run time: import it at run time, not only under `TYPE_CHECKING`, and declare types at "
    "the top level of a module, not within a function."
)
OWN_VALIDATOR = "x-mulligan-own-validator"
"""A keyword at strict parts of a schema, and at those that a user's own validator reads first: the type decides."""
UNTRUSTED_KEY = "x-mulligan-untrusted"
"""A keyword at texts that others may have written (`Untrusted`)."""


class MarkedJsonSchema(GenerateJsonSchema):
    """Generates JSON schemas for conversion.py.

    Each part that is strict, or has a `BeforeValidator` or one of that kind, has `OWN_VALIDATOR`; each optional field has a
    `default`, also where JSON cannot express it.
    """

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """The schema of a part."""
        generated = super().generate_inner(schema)
        is_own = schema.get("strict") or schema.get("config", {}).get("strict")
        if schema["type"] in ("function-before", "function-wrap", "function-plain"):
            is_own = not str(getattr(schema["function"]["function"], "__module__", "")).startswith("pydantic.")
        return {**generated, OWN_VALIDATOR: True} if is_own else generated

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema of a part with a default."""
        return {"default": None, **super().default_schema(schema)}


class NotOfSchema(ValueError):
    """A value is not valid by a JSON schema. `faults` are (path, what is wrong) and quote no value."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        self.faults = faults
        super().__init__("; ".join(f"{path}: {says}" if path else says for path, says in faults))


def schema_validator(schema: dict[str, Any]) -> Any:
    """A validator for a schema of the draft that its `$schema` names; 2020-12 where it names none.

    Raises:
        TypeError: it is not a JSON schema: one sentence, with what is wrong.
    """
    # Imported here as most agents have no such schema.
    import referencing
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema.get("$schema", ""), str):
        raise TypeError("is not a JSON schema: its $schema is not a text.")
    of_draft = validator_for(schema, default=Draft202012Validator)
    try:
        of_draft.check_schema(schema)
        json.dumps(schema, allow_nan=False)
    except SchemaError as error:
        raise TypeError(f"is not a JSON schema: {error.message} (at {error.json_path}).") from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"is not a JSON schema: {error}.") from error
    resource = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    # With this registry no `$ref` is fetched over a network, and jsonschema finds parts that have an `$id` of their own.
    registry: Any = referencing.Registry().with_resource(resource.id() or "", resource)
    return of_draft(schema, registry=registry.crawl())


def property_names(schema: dict[str, Any]) -> frozenset[str]:
    """All names that an object of this schema can have, optional ones too; empty where the schema does not say them all.

    A schema that says nothing about other properties than its own is read as one without others.
    """
    others = (schema.get("additionalProperties", False), schema.get("unevaluatedProperties", False))
    if others != (False, False) or not _MORE_NAMES.isdisjoint(schema):
        return frozenset()
    required = schema.get("required")  # a boolean in old drafts
    return frozenset([*schema.get("properties", {}), *(required if isinstance(required, list) else ())])


def schema_faults(validator: Any, value: JsonValue) -> list[tuple[str, str]]:
    """What is wrong with a value, as (path, what is wrong): the first 100 faults; empty where it is valid."""
    return [_fault(error) for error in islice(validator.iter_errors(value), _MAX_FAULTS)]


def _unknown_fields(error: Any) -> str:
    """The names of the fields that the schema does not allow: the first five, and how many more."""
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    names = [
        name for name in error.instance if name not in known and not any(re.search(each, name) for each in patterns)
    ]
    listed = ", ".join(json.dumps(name[:50], ensure_ascii=False) for name in names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"


def _fault(error: Any) -> tuple[str, str]:
    """Convert an error of jsonschema to (path, what is wrong). Its own messages quote the value; these do not."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    wanted = beginning(json.dumps(error.validator_value, ensure_ascii=False, default=str), _LONGEST_WANTED)
    match error.validator:
        case "required":
            missing = [name[:200] for name in error.validator_value if name not in error.instance][:_MAX_FAULTS]
            where = ", ".join(f"{path}.{name}" if path else name for name in missing)
            return where, "is required, but missing"
        case "type":
            return path, f"should be of type {wanted.strip(chr(34))}"
        case "enum" | "const":
            return path, f"should be one of {wanted}" if error.validator == "enum" else f"should be {wanted}"
        case "additionalProperties":
            return path, f"has fields that are not known: {_unknown_fields(error)}"
        case "anyOf" | "oneOf":
            return path, "is of none of the forms that are allowed"
    return path, f"violates {error.validator}: {wanted[:200]}"


def first_sentence(error: Exception) -> str:
    """The first sentence of pydantic's message, without its hints for those who write pydantic models."""
    if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
        named = re.search(r"you should define `([^`]*)`", str(error))
        return f"{named[1] if named else 'a type'}, or a type in it, {NOT_AT_RUN_TIME}"
    return str(error).split("\n")[0].split(" Set `arbitrary_types_allowed")[0].rstrip(".") + "."


def tidy_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the titles that pydantic derives from names: they cost tokens and add no information. Our mark of
    texts that others may have written (`Untrusted`) is for nobody else.
    """
    left_out = {"title": str, UNTRUSTED_KEY: bool}
    titled = {key: value for key, value in schema.items() if not isinstance(value, left_out.get(key, ()))}
    tidied = with_changed_parts(titled, tidy_schema)
    return {**tidied, "properties": tidied.get("properties", {})} if tidied.get("type") == "object" else tidied
