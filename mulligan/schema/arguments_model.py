"""A function's signature as a pydantic model of its arguments, with the JSON schema that a language model gets."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, Unpack, cast, get_args, get_origin, get_type_hints

import docstring_parser
import typing_extensions
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, JsonValue, PydanticUserError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from mulligan.schema.json_schema import NOT_AT_RUN_TIME, MarkedJsonSchema, NotOfSchema, first_sentence, tidy_schema
from mulligan.schema.normal_form import normal_form
from mulligan.schema.ordered_sets import with_ordered_sets
from mulligan.schema.plain_function import plain_function

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


class JsonType(Protocol):
    """A type of the JSON that a language model writes: a tool's arguments, or a type of output."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the type, as the model gets it."""
        ...

    @property
    def required(self) -> list[str]:
        """Names of the fields that have no default."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether `validate` waits for another process, so that it must not be called on an event loop."""
        return False

    @property
    def conversion_schema(self) -> dict[str, Any]:
        """The schema by which values are converted before they are validated (conversion.py)."""
        ...

    @property
    def coerces(self) -> bool:
        """Whether `validate` also accepts values of types that the schema does not allow, as pydantic does."""
        return False

    def validate(self, value: JsonValue) -> Any:
        """Validate a JSON value and convert it to Python's types.

        Raises:
            Exception: it is not valid; and whatever a user's own validators raise.
        """
        ...

    def to_json(self, validated: Any) -> JsonValue:
        """A value that `validate` returned, as JSON, in which sets are sorted."""
        ...

    def normal_form(self, validated: Any, recorded: JsonValue, written: JsonValue) -> JsonValue:
        """The JSON by which a value is compared with others: the same for all that mean the same.

        Args:
            validated: What `validate` returned.
            recorded: The value as it is recorded.
            written: What `validate` was given.

        Raises:
            Exception: users' code has raised it.
        """
        ...


class Arguments(JsonType, Protocol):
    """The type of a tool's arguments, and how its function is called with them."""

    def bind(self, values: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """The (args, kwargs) to call the function with."""
        ...


@dataclass(frozen=True)
class ArgumentsModel:
    """The arguments of a function as a pydantic model and as a JSON schema."""

    model: type[BaseModel]
    schema: dict[str, Any]
    description: str
    context_parameter: str | None
    parameters: tuple[tuple[str, str, bool], ...]
    """(name of the model's field, name of the function's parameter, positional only)."""
    conversion_schema: dict[str, Any]
    taken_names: frozenset[str] = frozenset()
    """Names that a further argument of a function with `**kwargs` cannot have."""

    def bind(self, values: BaseModel, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """The (args, kwargs) to call the function with. Parameters without a value keep their own defaults."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for field, parameter, positional in self.parameters:
            if positional:
                args.append(context if parameter == self.context_parameter else getattr(values, field))
            elif parameter == self.context_parameter:
                kwargs[parameter] = context
            elif field in values.model_fields_set:
                kwargs[parameter] = getattr(values, field)
        return args, kwargs | (values.__pydantic_extra__ or {})

    @property
    def blocks(self) -> bool:
        """Whether `validate` waits for another process: it never does."""
        return False

    @property
    def coerces(self) -> bool:
        """Whether `validate` also accepts values of other types, as pydantic does."""
        return True

    @property
    def required(self) -> list[str]:
        """Names of the parameters that have no default."""
        return list(self.schema.get("required", []))

    def validate(self, value: JsonValue) -> BaseModel:
        """Validate arguments by pydantic's rules for JSON: a string is read as a date, an array as a tuple.

        Raises:
            pydantic.ValidationError, NotOfSchema: they are not valid; and whatever a user's own validators raise.
        """
        names = value if isinstance(value, dict) and self.taken_names else ()
        if taken := [name for name in names if name in self.taken_names and name not in self.schema["properties"]]:
            raise NotOfSchema([(name, "is not a field of it") for name in taken])
        return self.model.model_validate_json(json.dumps(value))

    def to_json(self, validated: BaseModel) -> JsonValue:
        """The validated arguments as JSON, without defaults: "5" for an integer has become 5. Sets are sorted."""
        written = validated.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings="error")
        return cast(JsonValue, with_ordered_sets(validated, written))

    def normal_form(self, validated: BaseModel, recorded: JsonValue, written: JsonValue) -> JsonValue:
        """The validated arguments in the form by which they are compared (normal_form.py)."""
        return normal_form(validated, recorded, written)


def arguments_model(function: Callable[..., Any], name: str, context_type: type) -> ArgumentsModel:
    """Read a function's signature and docstring.

    Args:
        function: The function.
        name: The tool's name, for the name of the pydantic model.
        context_type: A parameter of this type gets the call's context; it is not in the schema.

    Raises:
        TypeError, ValueError, NameError: with a sentence on what is wrong with the signature.
    """
    if not callable(function):
        raise TypeError("it is not a function: use a `classmethod` as a method of its class, `tool(Class.method)`.")
    plain = plain_function(function)
    if inspect.isasyncgenfunction(plain):
        raise TypeError("it is an async generator function (it contains `yield`); return the whole result instead.")
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(plain, include_extras=True)
    except NameError as error:
        raise NameError(f"the type {error.name!r} in its signature {NOT_AT_RUN_TIME}") from error
    doc = docstring_parser.parse(_docstring(plain))
    descriptions = {parameter.arg_name: parameter.description for parameter in doc.params}
    bound = function.keywords if isinstance(function, functools.partial) else {}
    fields: dict[str, Any] = {}
    parameters: list[tuple[str, str, bool]] = []
    context_parameter = others = None
    for index, (parameter_name, parameter) in enumerate(signature.parameters.items()):
        if parameter_name in bound:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            others = _others(parameter_name, hints.get(parameter_name, Any))
            continue
        hint = _hint(parameter, hints)
        # Fields are named by number and aliased to the parameter, so that no parameter's name (schema, copy,
        # model_config, _private) collides with an attribute of BaseModel. A further argument of this name is refused.
        field = f"mulligan-parameter-{index}"
        parameters.append((field, parameter_name, parameter.kind is _POSITIONAL))
        if _is_context(hint, context_type):
            context_parameter = parameter_name
        else:
            fields[field] = (hint, _field(hint, parameter, descriptions.get(parameter_name)))
    model, schema, conversion_schema = _model_and_schemas(f"{name}_arguments", fields, parameters, others)
    taken = frozenset() if others is None else frozenset({*_names(function), *_names(plain), *fields})
    return ArgumentsModel(
        model, schema, _description(doc), context_parameter, tuple(parameters), conversion_schema, taken
    )


def _docstring(plain: Callable[..., Any]) -> str:
    """The docstring of a function; of an object whose `__call__` has none, that of its class."""
    if getattr(plain, "__name__", "") != "__call__":
        return inspect.getdoc(plain) or ""
    return plain.__doc__ or inspect.getdoc(type(getattr(plain, "__self__", None))) or ""


def _description(doc: docstring_parser.Docstring) -> str:
    return "\n\n".join(text for text in (doc.short_description, doc.long_description) if text)


def _hint(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """The type of a parameter.

    Raises:
        TypeError: it has none, or there may be any number of such arguments.
    """
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise TypeError(f"parameter '*{parameter.name}' has no schema; name each parameter.")
    if parameter.name not in hints:
        if parameter.name in ("self", "cls"):
            raise TypeError(
                f"parameter {parameter.name!r} has no value: a method is declared by `tool(object.method)`, of an object."
            )
        raise TypeError(f"parameter {parameter.name!r} has no type; annotate it, as in `{parameter.name}: str`.")
    return hints[parameter.name]


def _others(name: str, hint: Any) -> Any:
    """The type of the further arguments of a function with `**name`.

    Raises:
        TypeError: the names are those of a TypedDict.
    """
    if get_origin(hint) in (Unpack, typing_extensions.Unpack):
        raise TypeError(f"parameter '**{name}' is an unpacked TypedDict; name each parameter.")
    return hint


def _names(function: Callable[..., Any]) -> Iterable[str]:
    """The names by which a callable and the function below it take arguments, bound ones too."""
    while isinstance(function, functools.partial):
        yield from function.keywords
        function = function.func
    for parameter in inspect.signature(getattr(function, "__func__", function)).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            yield parameter.name


def _model_and_schemas(
    name: str, fields: dict[str, Any], parameters: list[tuple[str, str, bool]], others: Any
) -> tuple[type[BaseModel], dict[str, Any], dict[str, Any]]:
    """The model, its schema, and the schema by which values are converted. `others`: the type of further fields."""
    config = ConfigDict(extra="forbid" if others is None else "allow")
    if others is not None:
        fields = {**fields, "__pydantic_extra__": (dict[str, others], Field(init=False))}
    try:
        model = create_model(name, __config__=config, **fields)
        schemas = (
            model.model_json_schema(by_alias=True, schema_generator=generator)
            for generator in (GenerateJsonSchema, MarkedJsonSchema)
        )
        schema, conversion_schema = map(tidy_schema, schemas)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        culprit = _parameter_without_schema(fields, parameters)
        raise TypeError(f"no JSON schema can be made of {culprit}: {first_sentence(error)}") from error
    except ValueError as error:  # PydanticInvalidForJsonSchema is one
        raise TypeError(f"no JSON schema can be made of its parameters: {first_sentence(error)}") from error
    # Not the names in the schema, which is without fields that are hidden from it.
    aliases = [alias for each in model.model_fields.values() if (alias := _first_name(each.validation_alias))]
    if len(set(aliases)) < len(aliases):
        raise TypeError("two parameters have the same name for the model; give one another alias.")
    return model, schema, conversion_schema


def _field(hint: Any, parameter: inspect.Parameter, description: str | None) -> FieldInfo:
    own = next((m for m in get_args(hint)[1:] if isinstance(m, FieldInfo)), None) if _is_annotated(hint) else None
    options: dict[str, Any] = {}
    if own is not None and own.alias is None and own.validation_alias is not None:
        # The first name is the one in the schema, results and feedback. Values under the others are not converted.
        options["serialization_alias"] = _first_name(own.validation_alias) or parameter.name
    elif own is None or own.alias is None:
        options["alias"] = parameter.name
    if description and (own is None or own.description is None):
        options["description"] = description
    default = parameter.default
    if isinstance(default, FieldInfo):  # def f(x: int = Field(ge=1)): pydantic's older spelling
        return FieldInfo.merge_field_infos(default, Field(**options))
    if default is not parameter.empty:
        options["default"] = default
    return Field(**options)  # type: ignore[no-any-return]


def _first_name(alias: str | AliasPath | AliasChoices | None) -> str | None:
    if isinstance(alias, AliasChoices):
        return next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else None


def _is_annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated


def _is_context(hint: Any, context_type: type) -> bool:
    bare = get_args(hint)[0] if _is_annotated(hint) else hint
    return bare is context_type or context_type in get_args(bare)


def _parameter_without_schema(fields: dict[str, Any], parameters: list[tuple[str, str, bool]]) -> str:
    """The first parameter of which no schema can be made: each is tried alone."""
    names = {field: parameter for field, parameter, _ in parameters}
    for field, definition in fields.items():
        try:
            create_model("one", **{field: definition}).model_json_schema()
        except (PydanticUserError, PydanticSchemaGenerationError, ValueError):
            return f"parameter {names[field]!r}"
    return "its parameters"
