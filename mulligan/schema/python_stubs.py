"""Python declarations of functions whose parameters and results are described by JSON schemas."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mulligan.schema.subschemas import References

MOST_DEPTH = 12
"""Levels of objects and lists that are declared; what is below is `Any`."""
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_HEAD = "from typing import Any, Literal, NotRequired, TypedDict\n\n\nclass ToolError(Exception): ..."


@dataclass(frozen=True)
class FunctionSchema:
    """A function: its name, its description, the JSON schema of its parameters (an object), and that of its result."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    result: Mapping[str, Any] | None = None


def identifier(name: str) -> str:
    """A name as Python can write it: `my-tool` is `my_tool`."""
    legal = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{legal}_" if keyword.iskeyword(legal) else f"_{legal}" if not legal or legal[0].isdigit() else legal


def parameters_of(schema: Mapping[str, Any]) -> list[str]:
    """The names of a function's parameters in their order: those that are required come first.

    Empty if one of them cannot be written in Python: such a function has one parameter, `arguments`, an object.
    """
    properties = _properties(schema)
    if any(identifier(name) != name for name in properties):
        return []
    required = set(schema.get("required", ()))
    return sorted(properties, key=lambda name: name not in required)


def stubs_of(functions: Iterable[FunctionSchema]) -> str:
    """The declarations of functions, each an `async def`, with the types that they need before them."""
    stubs = _Stubs()
    signatures = [stubs.function(each) for each in functions]
    return "\n\n".join([_HEAD, *stubs.types.values(), *signatures]) + "\n"


@dataclass
class _Stubs:
    types: dict[str, str] = field(default_factory=dict)
    """The declarations of types, by their names."""

    def function(self, function: FunctionSchema) -> str:
        name, schema = identifier(function.name), function.parameters
        of = _Schema(self, schema, "".join(part.title() for part in name.split("_")))
        names, properties = parameters_of(schema), _properties(schema)
        if not names and properties:
            parameters = f"arguments: {of.type(schema, 'Arguments')}"
        else:
            required = set(schema.get("required", ()))
            parameters = ", ".join(
                f"{each}: {of.type(properties[each], each)}{'' if each in required else ' = ...'}" for each in names
            )
        result = "Any"
        if function.result is not None:
            result = _Schema(self, function.result, of.name).type(function.result, "Result")
        text = function.description.strip().replace("\\", "\\\\").replace('"""', "'''")
        text = f'"""{text}"""' if text and not text.endswith('"') else f'"""{text} """'
        return f"async def {name}({parameters}) -> {result}:\n    {text}"


@dataclass
class _Schema:
    """The types of one schema. `name`: what their names begin with."""

    stubs: _Stubs
    root: Mapping[str, Any]
    name: str
    _referenced: dict[str, str] = field(default_factory=dict)
    """The types of the references, as far as they were followed."""

    @cached_property
    def _references(self) -> References:
        return References(dict(self.root))

    def type(self, schema: Any, name: str, depth: int = 0) -> str:
        """The type of a schema as Python writes it. `name`: of the type, if it needs one."""
        if not isinstance(schema, Mapping) or depth > MOST_DEPTH:
            return "Any"
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, depth)
        if "const" in schema:
            return _literal([schema["const"]])
        if isinstance(values := schema.get("enum"), list):
            return _literal(values)
        for union in ("anyOf", "oneOf"):
            if isinstance(members := schema.get(union), list):
                return self._union([self.type(each, f"{name}{n or ''}", depth + 1) for n, each in enumerate(members)])
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([self.type({**schema, "type": each}, name, depth + 1) for each in kind])
        if kind == "array":
            return f"list[{self.type(schema.get('items'), name, depth + 1)}]"
        if kind == "object":
            return self._object(schema, name, depth)
        return _PLAIN.get(kind, "Any") if isinstance(kind, str) else "Any"

    @staticmethod
    def _union(types: Sequence[str]) -> str:
        unique = list(dict.fromkeys(types))
        return "Any" if "Any" in unique or not unique else " | ".join(unique)

    def _reference(self, reference: str, depth: int) -> str:
        if reference in self._referenced:
            return self._referenced[reference]
        found = self._references.target(reference)
        if not isinstance(found, dict):
            return "Any"
        name = reference.rpartition("/")[2]
        # A type that refers to itself is found here, quoted; a plain one is replaced below.
        is_object = found.get("type") == "object" and bool(_properties(found))
        self._referenced[reference] = self._new_name(name) if is_object else "Any"
        self._referenced[reference] = written = (
            self._object(found, name, depth, self._referenced[reference])
            if is_object
            else self.type(found, name, depth + 1)
        )
        return written

    def _object(self, schema: Mapping[str, Any], name: str, depth: int, type_name: str = "") -> str:
        properties = _properties(schema)
        if not properties:
            return f"dict[str, {self.type(schema.get('additionalProperties'), name, depth + 1)}]"
        type_name = type_name or self._new_name(name)
        self.stubs.types[type_name] = ""
        required = set(schema.get("required", ()))
        fields = {each: self.type(of, each, depth + 1) for each, of in properties.items()}
        fields = {each: of if each in required else f"NotRequired[{of}]" for each, of in fields.items()}
        if all(identifier(each) == each for each in fields):
            lines = "".join(f"\n    {each}: {of}" for each, of in fields.items())
            declaration = f"class {type_name}(TypedDict):{lines}"
        else:
            pairs = ", ".join(f"{each!r}: {of}" for each, of in fields.items())
            declaration = f'{type_name} = TypedDict("{type_name}", {{{pairs}}})'
        del self.stubs.types[type_name]  # what it refers to stands before it
        self.stubs.types[type_name] = declaration
        return type_name

    def _new_name(self, name: str) -> str:
        parts = re.split(r"[_\W]+", name, flags=re.ASCII)
        wanted = identifier(self.name + "".join(part[:1].upper() + part[1:] for part in parts))
        number = next(n for n in range(1, 10_000) if self._numbered(wanted, n) not in self.stubs.types)
        unique = self._numbered(wanted, number)
        self.stubs.types[unique] = ""
        return unique

    @staticmethod
    def _numbered(name: str, number: int) -> str:
        return name if number == 1 else f"{name}{number}"


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _literal(values: Sequence[Any]) -> str:
    """The type of some values. JSON numbers that are no integers, lists and objects have none."""
    if not values or not all(value is None or isinstance(value, str | bool | int) for value in values):
        return "Any"
    return f"Literal[{', '.join(map(repr, values))}]"
