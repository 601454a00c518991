"""Front matter: YAML as plain values, with the line of each: mappings, lists, texts, numbers, booleans and nothing else.

Others write it. Its events are counted as they are parsed, and each value is made of one event: no text of the length that
is allowed costs more than a second or a few megabytes, however it is nested.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from mulligan.schema.cut_text import beginning
from mulligan.schema.well_formed import well_formed

if TYPE_CHECKING:
    from yaml.events import ScalarEvent

FieldPath = tuple[str | int, ...]
"""The path to a value: the keys of mappings and the indexes of lists."""
MOST_CHARACTERS, MOST_DEPTH, MOST_VALUES = 65_536, 20, 5_000
"""Of a front matter: its length, its levels, and its values, keys among them."""
LONGEST_KEY, LONGEST_NUMBER, MOST_BITS = 200, 100, 63
"""Characters of a key and of a number, and bits of an integer."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}
_TAGS = {None, "!", *_PLAIN, *(f"{_TAG}{kind}" for kind in ("str", "seq", "map", "timestamp"))}
_MERGE = f"{_TAG}merge"
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


class Place(NamedTuple):
    """The `line` of a value, and the value itself where it is a `text`."""

    line: int
    text: str | None = None


class FileFault(Exception):
    """A file cannot be used: `line`, counted from 1, and `text`, a sentence without its full stop."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line, self.text = line, text


def find_front_matter(lines: str) -> re.Match[str] | None:
    """The front matter of a text whose lines end with line feeds: group 1, between two lines `---`; None: it has none."""
    return _FRONT_MATTER.match(lines)


def read_yaml(text: str, first_line: int) -> tuple[dict[str, Any], dict[FieldPath, Place]]:
    """Read a mapping; returns it, and the place of each value in it.

    Args:
        text: The YAML.
        first_line: The line of the file on which it begins.

    Raises:
        FileFault: it is no YAML, no mapping, too long, names a key twice, or has an alias, a tag, or too much of something.
    """
    import yaml

    if len(text) > MOST_CHARACTERS:
        raise FileFault(first_line, f"the front matter has {len(text):,} characters; the limit is {MOST_CHARACTERS:,}")
    try:
        fields = _Fields(text, first_line)
        value = fields.read_document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, reason = mark.line if mark else 0, error.problem or error.context
    except (yaml.YAMLError, ValueError, LookupError, ArithmeticError) as error:  # such as `"\\UFFFFFFFF"`
        line, reason = 0, " ".join(str(error).split())
    else:
        if not isinstance(value, dict):
            raise FileFault(first_line, "the front matter has no fields; write `NAME: VALUE` lines")
        return value, fields.places
    raise FileFault(
        first_line + line,
        f"the front matter is no YAML: {beginning(reason or '', 200)}; correct it, or write the text between quotes",
    )


class _Fields:
    """Reads the events of one text, and notes the lines of its values."""

    def __init__(self, text: str, first_line: int) -> None:
        import yaml

        self._loader: Any = yaml.SafeLoader(text)
        self._first_line, self._values = first_line, 0
        self.places = dict[FieldPath, Place]()

    def read_document(self) -> Any:
        """The value of the one document."""
        from yaml.events import DocumentStartEvent, StreamEndEvent

        self._next()  # the stream begins
        value = None
        if isinstance(self._next(), DocumentStartEvent):
            value = self._read(self._next(), ())
            self._next()  # the document ends
            if not isinstance(event := self._next(), StreamEndEvent):
                raise FileFault(self._line(event), "the front matter has a second document; remove it")
        return value

    def _next(self) -> Any:
        return self._loader.get_event()

    def _line(self, event: Any) -> int:
        line: int = event.start_mark.line
        return self._first_line + line

    def _read(self, event: Any, path: FieldPath) -> Any:
        """The value that begins with an event, and stands at a path."""
        from yaml.events import MappingStartEvent, ScalarEvent, SequenceStartEvent

        self._check(event, path)
        line = self._line(event)
        self.places[path] = Place(line)
        if isinstance(event, SequenceStartEvent):
            return self._list(path)
        if isinstance(event, MappingStartEvent):
            return self._mapping(path)
        assert isinstance(event, ScalarEvent)
        value = self._scalar(event)
        self.places[path] = Place(line, value if isinstance(value, str) else None)
        return value

    def _check(self, event: Any, path: FieldPath) -> None:
        """Check what begins with an event before anything is made of it. Of a few lines, aliases can make a value that no
        memory holds.

        Raises:
            FileFault: it may not stand there.
        """
        from yaml.events import AliasEvent

        self._values += 1
        fault = None
        if isinstance(event, AliasEvent):
            fault = "it has an alias (*…), which is not allowed; write the value itself"
        elif event.tag not in _TAGS:
            fault = f"it has the tag {event.tag[:80]!r}, which is not allowed; leave it out"
        elif len(path) > MOST_DEPTH:
            fault = f"it has more than {MOST_DEPTH} levels; write it with fewer"
        elif self._values > MOST_VALUES:
            fault = f"it has more than {MOST_VALUES:,} values; write fewer"
        if fault is not None:
            raise FileFault(self._line(event), fault)

    def _list(self, path: FieldPath) -> list[Any]:
        from yaml.events import SequenceEndEvent

        values: list[Any] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            values.append(self._read(event, (*path, len(values))))
        return values

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        from yaml.events import MappingEndEvent

        fields: dict[str, Any] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            key, line = self._key(event, path), self._line(event)
            if key in fields:
                raise FileFault(line, f"{json.dumps(key[:80])} stands there twice; remove one")
            fields[key] = self._read(self._next(), (*path, key))
            self.places[(*path, key)] = Place(line, self.places[(*path, key)].text)
        return fields

    def _key(self, event: Any, path: FieldPath) -> str:
        from yaml.events import ScalarEvent

        self._check(event, path)
        if not isinstance(event, ScalarEvent):
            raise FileFault(self._line(event), "a key must be a text; write `NAME: VALUE`")
        if len(event.value) > LONGEST_KEY:
            raise FileFault(
                self._line(event),
                f"the key {event.value[:60]!r}… has {len(event.value):,} characters; the limit is {LONGEST_KEY}",
            )
        if self._tag(event) == _MERGE:
            raise FileFault(
                self._line(event), "it has a merge key (<<), which is not allowed; write the fields themselves"
            )
        return self._text(event)

    def _scalar(self, event: ScalarEvent) -> Any:
        tag, text, line = self._tag(event), event.value, self._line(event)
        if tag not in _PLAIN:
            return self._text(event)  # a date is a text too
        if len(text) > LONGEST_NUMBER:
            raise FileFault(
                line, f"the number {text[:60]!r}… has {len(text):,} characters; the limit is {LONGEST_NUMBER}"
            )
        from yaml.nodes import ScalarNode

        try:
            value = self._loader.construct_object(ScalarNode(tag, text))
        except (ValueError, LookupError, ArithmeticError):  # a tag such as `!!int` may stand before any text
            raise FileFault(line, f"{text[:60]!r} is no value of its type") from None
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise FileFault(line, f"the number {text[:60]} is too large")
        return value

    def _tag(self, event: ScalarEvent) -> str:
        """The tag of a scalar: that which stands there, or what its text looks like."""
        from yaml.nodes import ScalarNode

        if event.tag is None or event.tag == "!":
            return str(self._loader.resolve(ScalarNode, event.value, event.implicit))
        return event.tag

    def _text(self, event: ScalarEvent) -> str:
        """The text of a scalar.

        Raises:
            FileFault: an escape in it stands for what no text may have.
        """
        if "\0" in event.value or well_formed(event.value) != event.value:
            raise FileFault(self._line(event), f"{event.value[:60]!a} has a NUL or half a character; remove it")
        return event.value
