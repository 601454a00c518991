"""What a sub-agent answers with, as its caller's tool declares it: also from quarantine, where no free text passes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

from pydantic import JsonValue, TypeAdapter, ValidationError

from mulligan.output import Output, ProviderStrategy, ToolStrategy, unwrap
from mulligan.schema.json_schema import UNTRUSTED_KEY, tidy_schema
from mulligan.schema.subschemas import References, all_subschemas
from mulligan.schema.typed_dicts import replace_typed_dicts

MOST_CHARS = 64
"""Characters of a string that may leave quarantine."""
_FORMATS: Mapping[str, TypeAdapter[Any]] = {
    name: TypeAdapter(kind) for name, kind in (("date", date), ("date-time", datetime), ("time", time), ("uuid", UUID))
}
_PLAIN = {"number": (int, float), "integer": (int, float), "boolean": (bool,), "null": (type(None),)}
_UNIONS = ("anyOf", "oneOf")


class Untrusted:
    """Marks a text that others may have written: `Annotated[str, Untrusted]`, in the output of a quarantined sub-agent.

    The field may have any text; the object that contains it counts as untrusted (docs/hostile-content.md).
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        """Called by pydantic: the field's JSON schema, marked. What models get has no such mark."""
        return {**handler(schema), UNTRUSTED_KEY: True}


class RefusedOutputError(ValueError):
    """A sub-agent's answer is not what its caller may get. The message quotes nothing of it."""


@dataclass(frozen=True, eq=False)
class SubAgentOutput:
    """The output of a sub-agent's runs.

    Attributes:
        schema: The JSON schema for the runs; None: the sub-agent is declared with this output itself.
        quarantine: Whether its caller gets nothing but a valid object.
        is_untrusted: Whether the object may contain texts that others have written.
    """

    _output: Output
    schema: dict[str, Any] | None
    quarantine: bool
    is_untrusted: bool
    _emitted: dict[str, Any]
    """The JSON schema of a valid object as its caller gets it."""

    @classmethod
    def declared(cls, given: Any, own: Any, *, quarantine: bool) -> SubAgentOutput | None:
        """Parse the options of `Agent.as_tool`. None: the answer is what the sub-agent is declared with.

        Args:
            given: The option `output`.
            own: The `output` of the sub-agent.
            quarantine: The option.

        Raises:
            TypeError: no JSON schema can be made of it, or text may pass: the end of a sentence.
        """
        if isinstance(given, ToolStrategy | ProviderStrategy):
            raise TypeError("output of as_tool is a schema; a strategy belongs to the output of the agent itself")
        declaration = own if given is None else given
        if not quarantine and given is None:
            return None
        if declaration is None or declaration is str:
            raise TypeError("quarantine needs an output: a text may contain instructions")
        output = Output.from_declaration(declaration)
        bare = declaration.schema if isinstance(declaration, ToolStrategy | ProviderStrategy) else declaration
        accepted, emitted = _schema(bare, "validation"), _schema(bare, "serialization")
        if quarantine:
            for schema in (accepted, emitted):
                for fault in _Walk(schema, by_type=not isinstance(bare, dict)).faults(schema, "its output"):
                    raise TypeError(f"quarantine: {fault}")
        sent = None if given is None or given is own else {"title": output.whole.name, **tidy_schema(accepted)}
        parts = [*all_subschemas(accepted), *all_subschemas(emitted)]
        is_untrusted = any(part.get(UNTRUSTED_KEY) is True for part in parts)
        return cls(output, sent, quarantine, is_untrusted, emitted)

    @property
    def answer_schema(self) -> dict[str, Any]:
        """The JSON schema of an answer, as models get it."""
        return self._output.whole.schema

    def read(self, text: str) -> str:
        """The answer of a run as its caller gets it: only what is declared of it.

        Args:
            text: The run's output: JSON, or a plain text.

        Raises:
            RefusedOutputError: it is not valid, or it contains text that may not leave quarantine.
        """
        whole, name = self._output.whole, self._output.whole.name
        try:
            value = _from_run(text)
            valid = whole.to_json(whole.validate({"value": value} if whole.is_wrapped else value))
        except Exception:  # noqa: BLE001 - a user's validators and serializers may raise anything
            raise RefusedOutputError(f"its answer is no valid `{name}`") from None
        passed = unwrap(whole, valid)
        if self.quarantine and not _Walk(self._emitted).may_pass(self._emitted, passed):
            raise RefusedOutputError(f"its answer is a `{name}` with a text that may not leave quarantine")
        return passed if isinstance(passed, str) else json.dumps(passed, ensure_ascii=False)


@dataclass(frozen=True)
class _Walk:
    """Walks one JSON schema from its root. `by_type`: of a Python type, which leaves out fields that it does not declare."""

    root: dict[str, Any]
    by_type: bool = False

    def faults(self, schema: Any, path: str, above: tuple[int, ...] = ()) -> Iterator[str]:
        """Why free text may be in a value of a schema, which is at a path: a part of a sentence for each place."""
        part = self._followed(schema)
        if id(schema) in above or part.get(UNTRUSTED_KEY) is True or "enum" in part or "const" in part:
            return
        above = (*above, id(schema))
        if alternatives := [each for union in _UNIONS for each in part.get(union, ())]:
            for each in alternatives:
                yield from self.faults(each, path, above)
            return
        kinds = _types(part)
        if not kinds or not set(kinds) <= {*_PLAIN, "string", "array", "object"}:
            yield f"{path} may be any value; declare what it is"
        if "string" in kinds and not _is_short(part):
            yield (
                f"{path} may be any text; use an enum, declare a max_length of at most {MOST_CHARS} and a pattern, or say "
                "Annotated[str, Untrusted]"
            )
        if "array" in kinds:
            for each in self._items(part):
                yield from self.faults(each, f"{path}[]", above)
        if "object" in kinds:
            others = part.get("additionalProperties", not self.by_type)
            if others is not False or part.get("patternProperties"):
                yield f"{path} may have fields of any name; declare its fields, and no others"
            for name, each in part.get("properties", {}).items():
                yield from self.faults(each, f"{path}.{name}", above)

    def may_pass(self, schema: Any, value: JsonValue) -> bool:
        """Whether a valid value of a schema has no free text."""
        part = self._followed(schema)
        if part.get(UNTRUSTED_KEY) is True:
            return True
        if "const" in part or "enum" in part:
            return any(_same(value, each) for each in part.get("enum", [part.get("const")]))
        if alternatives := [each for union in _UNIONS for each in part.get(union, ())]:
            return any(self.may_pass(each, value) for each in alternatives)
        return any(self._is_of(kind, part, value) for kind in _types(part))

    def _is_of(self, kind: str, part: dict[str, Any], value: JsonValue) -> bool:
        if kind == "string":
            return isinstance(value, str) and _is_short(part) and _has_no_text(part, value)
        if kind == "array":
            items = (
                [*part.get("prefixItems", ()), *([part["items"]] * len(value) if "items" in part else ())]
                if (isinstance(value, list))
                else []
            )
            return isinstance(value, list) and len(items) >= len(value) and all(map(self.may_pass, items, value))
        if kind == "object":
            fields = part.get("properties", {})
            return isinstance(value, dict) and all(
                name in fields and self.may_pass(fields[name], each) for name, each in value.items()
            )
        return isinstance(value, _PLAIN.get(kind, ())) and (kind == "boolean") == isinstance(value, bool)

    def _items(self, part: dict[str, Any]) -> Iterable[Any]:
        prefix = part.get("prefixItems", [])
        is_closed = part.get("items") is False or part.get("maxItems") == len(prefix)
        return [*prefix, *([] if prefix and is_closed else [part.get("items", {})])]

    def _followed(self, schema: Any) -> dict[str, Any]:
        return References(self.root).followed(schema) if isinstance(schema, dict) else {}


def _schema(declaration: Any, mode: Any) -> dict[str, Any]:
    """The JSON schema of a declaration that `Output` has accepted."""
    if isinstance(declaration, dict):
        return declaration
    return TypeAdapter(replace_typed_dicts(declaration)).json_schema(by_alias=True, mode=mode)


def _from_run(text: str) -> JsonValue:
    """A run's output, as its caller gets it: JSON, or a text that stands for itself."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    # A text such as `5` is JSON as well: what it is to be is decided by the type.
    return value


def _types(part: dict[str, Any]) -> list[str]:
    kind = part.get("type", "object" if "properties" in part else [])
    return [kind] if isinstance(kind, str) else [*kind]


def _is_short(part: dict[str, Any]) -> bool:
    """Whether strings of a schema have a format of ours, or a limit and a pattern."""
    most = part.get("maxLength")
    return part.get("format") in _FORMATS or (
        isinstance(most, int) and most <= MOST_CHARS and bool(part.get("pattern"))
    )


def _has_no_text(part: dict[str, Any], value: str) -> bool:
    """Whether a string has nothing that separates words, and is of its format."""
    if not value.isprintable() or any(each.isspace() for each in value):
        return False
    if (adapter := _FORMATS.get(part.get("format", ""))) is None:
        return len(value) <= MOST_CHARS
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return len(value) <= MOST_CHARS


def _same(value: JsonValue, other: Any) -> bool:
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)
