"""YAML as plain values, with the line of each: mappings, lists, texts, numbers, booleans and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from yaml.nodes import Node, ScalarNode

FieldPath = tuple[str | int, ...]
"""The path to a value: the keys of mappings and the indexes of lists."""
MOST_DEPTH = 20


class Place(NamedTuple):
    """The `line` of a value, and the value itself where it is a `text`."""

    line: int
    text: str | None = None


MOST_BITS = 63
"""Of an integer."""
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null")}


class FileFault(Exception):
    """A file cannot be used: `line`, counted from 1, and `text`, a sentence without its full stop."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line, self.text = line, text


def read_yaml(text: str, first_line: int) -> tuple[dict[str, Any], dict[FieldPath, Place]]:
    """Read a mapping; returns it, and the place of each value in it.

    Args:
        text: The YAML.
        first_line: The line of the file on which it begins.

    Raises:
        FileFault: it is no YAML, no mapping, names a key twice, or has an alias, a tag, or too many levels.
    """
    import yaml

    loader, places = yaml.SafeLoader(text), dict[FieldPath, Place]()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            # Of a few lines, aliases can make a value that no memory holds.
            if isinstance(event, yaml.AliasEvent):
                raise FileFault(
                    first_line + (event.start_mark.line if event.start_mark else 0),
                    "it has an alias (*…), which is not allowed",
                )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if root is None else _Fields(loader, places, first_line).read(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        raise FileFault(line, f"the front matter is no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileFault(first_line, f"the front matter is no YAML: {reason}") from None
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise FileFault(first_line, "the front matter has no fields; write `model: …`")
    return value, places


class _Fields:
    """Reads the nodes of one text, and notes their lines."""

    def __init__(self, loader: Any, places: dict[FieldPath, Place], first_line: int) -> None:
        self._loader, self._places, self._first_line = loader, places, first_line

    def read(self, node: Node, path: FieldPath) -> Any:
        """The value of a node, which stands at a path."""
        from yaml.nodes import MappingNode, ScalarNode, SequenceNode

        line = self._first_line + node.start_mark.line
        self._places[path] = Place(line)
        if len(path) > MOST_DEPTH:
            raise FileFault(line, f"it has more than {MOST_DEPTH} levels")
        if isinstance(node, SequenceNode):
            return [self.read(each, (*path, index)) for index, each in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            value = self._scalar(node)
            self._places[path] = Place(line, value if isinstance(value, str) else None)
            return value
        assert isinstance(node, MappingNode)
        fields: dict[str, Any] = {}
        for key, value in node.value:
            line = self._first_line + key.start_mark.line
            if not isinstance(key, ScalarNode):
                raise FileFault(line, "a key must be a text")
            if key.value in fields:
                raise FileFault(line, f'"{key.value[:80]}" stands there twice')
            fields[key.value] = self.read(value, (*path, key.value))
            self._places[(*path, key.value)] = Place(line, self._places[(*path, key.value)].text)
        return fields

    def _scalar(self, node: ScalarNode) -> Any:
        line = self._first_line + node.start_mark.line
        if node.tag in _PLAIN:
            try:
                value = self._loader.construct_object(node)
            except (ValueError, LookupError, ArithmeticError):  # a tag such as `!!int` may stand before any text
                raise FileFault(line, f"{node.value[:60]!r} is no value of its type") from None
            if isinstance(value, int) and value.bit_length() > MOST_BITS:
                raise FileFault(line, f"the number {node.value[:60]} is too large")
            return value
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            raise FileFault(self._first_line + node.start_mark.line, f"it has the tag {node.tag[:80]}")
        return node.value  # a date is a text too
