"""From a function's signature to a pydantic model of its arguments, and the JSON schema that a model is shown."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, JsonValue, PydanticUserError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


class JsonType(Protocol):
    """What takes a model's JSON: a tool's arguments, or a type of output."""

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema, as the model is shown it."""
        ...

    @property
    def required(self) -> list[str]:
        """Names of the fields that have no default."""
        ...

    def validate(self, value: JsonValue) -> Any:
        """The value as Python's.

        Raises:
            Exception: it does not fit; and whatever a user's own validators raise.
        """
        ...

    def to_json(self, validated: Any) -> JsonValue:
        """What `validate` gave, as JSON in the form of its types."""
        ...


class Arguments(JsonType, Protocol):
    """What a tool's arguments must be, and how its function is called with them."""

    def bind(self, values: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """The (args, kwargs) that the function is called with."""
        ...


@dataclass(frozen=True)
class ArgumentsModel:
    """What a function takes, as pydantic and as JSON schema."""

    model: type[BaseModel]
    schema: dict[str, Any]
    description: str
    context_parameter: str | None
    parameters: tuple[tuple[str, str, bool], ...]
    """(name of the model's field, name of the function's parameter, positional only)."""

    def bind(self, values: BaseModel, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """The (args, kwargs) that the function is called with. Parameters that were not given keep their own defaults."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for field, parameter, positional in self.parameters:
            if positional:
                args.append(context if parameter == self.context_parameter else getattr(values, field))
            elif parameter == self.context_parameter:
                kwargs[parameter] = context
            elif field in values.model_fields_set:
                kwargs[parameter] = getattr(values, field)
        return args, kwargs

    @property
    def required(self) -> list[str]:
        """Names of the parameters that have no default."""
        return list(self.schema.get("required", []))

    def validate(self, value: JsonValue) -> BaseModel:
        """The arguments by JSON's rules: a string is a date, an array a tuple.

        Raises:
            pydantic.ValidationError: they do not fit; and whatever a user's own validators raise.
        """
        return self.model.model_validate_json(json.dumps(value))

    def to_json(self, validated: BaseModel) -> JsonValue:
        """The arguments that were given, in the form of their types: "5" for an integer is 5."""
        shown = validated.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings="error")
        return cast(JsonValue, shown)


def arguments_model(function: Callable[..., Any], name: str, context_type: type) -> ArgumentsModel:
    """Read a function's signature.

    Raises:
        TypeError, ValueError, NameError: with a sentence on what is wrong with the signature.
    """
    if not callable(function):
        raise TypeError("it is not a function.")
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise NameError(f"the type {error.name!r} in its signature is not defined in its module.") from error
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {parameter.arg_name: parameter.description for parameter in doc.params}
    fields: dict[str, Any] = {}
    parameters: list[tuple[str, str, bool]] = []
    context_parameter = None
    for index, (parameter_name, parameter) in enumerate(signature.parameters.items()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TypeError(f"parameter '{star}{parameter_name}' has no schema; name each parameter.")
        if parameter_name not in hints:
            raise TypeError(f"parameter {parameter_name!r} has no type; annotate it.")
        hint = hints[parameter_name]
        # Fields are named by number and aliased to the parameter, so that no parameter's name
        # (schema, copy, model_config, _private) meets an attribute of BaseModel.
        field = f"p{index}"
        parameters.append((field, parameter_name, parameter.kind is _POSITIONAL))
        if _is_context(hint, context_type):
            context_parameter = parameter_name
            continue
        fields[field] = (hint, _field(hint, parameter, described.get(parameter_name)))
    try:
        model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(by_alias=True)
    except PydanticSchemaGenerationError as error:
        culprit = _culprit(fields, parameters)
        raise TypeError(f"no JSON schema can be made of {culprit}: {first_sentence(error)}") from error
    except PydanticUserError as error:
        raise TypeError(
            f"no JSON schema can be made of {_culprit(fields, parameters)}: {first_sentence(error)}"
        ) from error
    except ValueError as error:  # PydanticInvalidForJsonSchema is one
        raise TypeError(f"no JSON schema can be made of its parameters: {first_sentence(error)}") from error
    description = "\n\n".join(text for text in (doc.short_description, doc.long_description) if text)
    return ArgumentsModel(model, tidy_schema(schema), description, context_parameter, tuple(parameters))


def _field(hint: Any, parameter: inspect.Parameter, description: str | None) -> FieldInfo:
    own = next((m for m in get_args(hint)[1:] if isinstance(m, FieldInfo)), None) if _is_annotated(hint) else None
    options: dict[str, Any] = {}
    if own is not None and own.alias is None and own.validation_alias is not None:
        # The model may write what is declared; what is shown back to it is the first of that.
        options["serialization_alias"] = _first_name(own.validation_alias) or parameter.name
    elif own is None or own.alias is None:
        options["alias"] = parameter.name
    if description and (own is None or own.description is None):
        options["description"] = description
    default = parameter.default
    if isinstance(default, FieldInfo):  # def f(x: int = Field(ge=1)): pydantic's older spelling
        return FieldInfo.merge_field_infos(default, **options)
    if default is not parameter.empty:
        options["default"] = default
    return Field(**options)  # type: ignore[no-any-return]


def _first_name(alias: str | AliasPath | AliasChoices) -> str | None:
    if isinstance(alias, AliasChoices):
        return next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else None


def _is_annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated


def _is_context(hint: Any, context_type: type) -> bool:
    bare = get_args(hint)[0] if _is_annotated(hint) else hint
    return bare is context_type or context_type in get_args(bare)


def _culprit(fields: dict[str, Any], parameters: list[tuple[str, str, bool]]) -> str:
    """The first parameter of which no schema can be made, by trying each alone."""
    names = {field: parameter for field, parameter, _ in parameters}
    for field, definition in fields.items():
        try:
            create_model("one", **{field: definition}).model_json_schema()
        except (PydanticUserError, PydanticSchemaGenerationError, ValueError):
            return f"parameter {names[field]!r}"
    return "its parameters"


def first_sentence(error: Exception) -> str:
    """What pydantic says, without its hints for programmers of models."""
    return str(error).split("\n")[0].split(" Set `arbitrary_types_allowed")[0].rstrip(".") + "."


def tidy_schema(schema: Any, *, names_are_data: bool = False) -> Any:
    """Leave out the titles that pydantic makes from names: they cost tokens and say nothing new."""
    if isinstance(schema, list):
        return [tidy_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str) and not names_are_data:
            continue
        if key in ("default", "const", "enum", "examples") and not names_are_data:
            tidied[key] = value
        else:
            tidied[key] = tidy_schema(value, names_are_data=key in ("properties", "$defs") and not names_are_data)
    if not names_are_data and tidied.get("type") == "object":
        tidied.setdefault("properties", {})
    return tidied
