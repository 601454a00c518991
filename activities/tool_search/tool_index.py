"""An index of tools by their names, descriptions and parameters: BM25 of SQLite's full-text search."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from threading import Lock

from pydantic import JsonValue

from mulligan.wire.agent_facts import ToolDefinition

WEIGHTS = (2.0, 1.0, 0.5)
"""Of a word in a name, in a description, and in the parameters (benchmarks/tool_search.py compares others)."""
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can do for from have how i if in is it me my of on or please that the this to what which "
        "will with would you",
    )
)
"""Words that say nothing of what a tool does."""
MOST_WORDS, DEEPEST = 100, 12
"""Words of a query, and levels of a schema, that count."""
_WORD_IN_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class ToolIndex:
    """Finds tools by words in any order, in English by their stems. The same tools and words give the same result."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._names, self._lock = [tool.name for tool in tools], Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name, description, parameters, tokenize='porter unicode61')"
        )
        rows = ((number, *map(_spaced, _texts(tool))) for number, tool in enumerate(tools))
        self._database.executemany("INSERT INTO tools (rowid, name, description, parameters) VALUES (?, ?, ?, ?)", rows)

    def find(self, query: str, limit: int) -> list[str]:
        """The names of the tools that fit a query, the best first. A tool with none of its words is not among them."""
        words = list(dict.fromkeys(word for word in _spaced(query).split() if word not in COMMON))[:MOST_WORDS]
        if not words:
            return []
        # Each word is a quoted text for SQLite: what people or models write is no operator of its query language.
        match = " OR ".join(f'"{word}"' for word in words)
        command = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, ?, ?, ?), rowid LIMIT ?"
        with self._lock:
            rows = self._database.execute(command, (match, *WEIGHTS, limit)).fetchall()
        return [self._names[number] for (number,) in rows]


def _texts(tool: ToolDefinition) -> tuple[str, str, str]:
    return tool.name, tool.description, " ".join(_words_of(tool.parameters))


def _words_of(schema: JsonValue, depth: int = 0) -> Iterator[str]:
    """The names, descriptions and allowed values of a schema's properties."""
    if depth > DEEPEST or not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    for name, inner in (properties if isinstance(properties, dict) else {}).items():
        yield name
        if isinstance(inner, dict) and isinstance(text := inner.get("description"), str):
            yield text
        yield from _words_of(inner, depth + 1)
    yield from _words_of(schema.get("items"), depth + 1)
    values = schema.get("enum")
    yield from (str(value) for value in (values if isinstance(values, list) else ()))


def _spaced(text: str) -> str:
    """The words of a text, also those inside of identifiers, separated by spaces."""
    return " ".join(re.findall(r"[^\W_]+", _WORD_IN_NAME.sub(" ", text).lower()))
