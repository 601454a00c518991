"""Where the parts of a JSON schema are, and where its references lead. Each reader of schemas walks with these functions.

A schema may come from anybody: parts that are not schemas are left alone, and a reference that leads nowhere is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 150
"""Levels of a schema as JSON: pydantic parses 200, and a run's definition has some around the schema."""
MAPS = frozenset(
    {
        *("properties", "patternProperties", "$defs", "definitions"),
        *("dependentSchemas", "dependencies", "dependentRequired"),
    }
)
"""Keywords whose value has names of fields or of schemas as its keys."""
DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is no schema. That of any other may be one, also of an unknown one: a `$ref` may lead there."""


def with_changed_parts(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A schema whose subschemas, one level below it, have been replaced by `change`. `schema` itself is not changed."""

    def changed(key: str, value: Any) -> Any:
        if key in DATA:
            return value
        if isinstance(value, dict):
            return {name: _changed(inner, change) for name, inner in value.items()} if key in MAPS else change(value)
        return [_changed(inner, change) for inner in value] if isinstance(value, list) else value

    return {key: changed(key, value) for key, value in schema.items()}


def _changed(part: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    return change(part) if isinstance(part, dict) else part


def all_subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it, without those that references lead to."""
    left = [schema]
    while left:
        if isinstance(part := left.pop(), dict):
            yield part
            with_changed_parts(part, left.append)


def all_values(value: Any) -> Iterator[Any]:
    """A JSON value and all values in it."""
    left = [value]
    while left:
        part = left.pop()
        yield part
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part


def check_depth(schema: Any) -> None:
    """Check that a schema is not nested too deeply to be walked.

    Raises:
        TypeError: it is. The message continues a sentence that names the schema.
    """
    depth, level = 0, [schema]
    while level:
        depth += 1
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else _list(part))]
    if depth > MAX_DEPTH:
        raise TypeError(f"is nested {depth} levels deep; the limit is {MAX_DEPTH}.")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class References:
    """Resolves the references in one schema, without documents elsewhere."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._resolver: Any = None
        self._targets: dict[str, Any] = {}

    def target(self, reference: Any) -> Any:
        """What a reference leads to; None if that is nothing in the schema."""
        if not isinstance(reference, str):
            return None
        if reference not in self._targets:
            self._targets[reference] = self._lookup(reference)
        return self._targets[reference]

    def followed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema with the schema that its `$ref` leads to in its place; the keywords beside the `$ref` count.

        A `$ref` that leads to no object, or back to itself, stays as it is.
        """
        followed: set[Any] = set()
        while isinstance(target := self.target(reference := schema.get("$ref")), dict) and reference not in followed:
            followed.add(reference)
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def _lookup(self, reference: str) -> Any:
        # Imported here as most schemas have no reference.
        import referencing
        from referencing.jsonschema import DRAFT202012

        try:
            if self._resolver is None:
                resource: Any = DRAFT202012.create_resource(self._root)
                self._resolver = referencing.Registry().resolver_with_root(resource)
            return self._resolver.lookup(reference).contents
        except Exception:  # noqa: BLE001 - a part of any shape may be on the way, for which the library has no error
            return None


def check_references(schema: dict[str, Any]) -> None:
    """Check that each `$ref` of a schema leads to a schema in it, or to one of the drafts' own.

    Raises:
        TypeError: one does not: one sentence, with the reference.
    """
    import referencing
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    def check(resource: Any, resolver: Any) -> None:
        resolver = resolver.in_subresource(resource)
        contents = resource.contents
        for keyword in ("$ref", "$dynamicRef") if isinstance(contents, dict) else ():
            if not isinstance(reference := contents.get(keyword), str):
                continue
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                raise TypeError(f"is not a JSON schema: its reference {reference!r} leads nowhere.") from error
        for inner in resource.subresources():
            check(inner, resolver)

    root = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    check(root, REGISTRY.resolver_with_root(root))
