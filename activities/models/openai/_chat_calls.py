"""The calls of a chat completion, from pieces as hundreds of servers cut them: what belongs together is seen by the whole.

Ids change within a call or are missing, all calls have one index or none, arguments come whole once more after their pieces
or grow from piece to piece, and some servers end a stream with all of its calls again, with other ids. So no single field
is trusted. In doubt two pieces are one call, whose arguments are then no JSON: nothing is executed that nobody wrote.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models._read_response import check_parts
from mulligan.activities.models.openai._chat_fields import join_deltas

_OF_CALL = ("id", "index", "type", "function")
_SPACE = re.compile(r"\s*+")
_COMPARED_CHARS = 8_000_000
"""Characters of arguments of one answer that are parsed to tell whether a call was whole before."""
_COST_OF_OBJECT = 50
"""An object takes as long as so many characters."""


class ChatCalls:
    """The calls of an answer, while their pieces arrive."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._chunk = 0
        self._left = _COMPARED_CHARS

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, deltas: list[Any], *, is_whole: bool) -> Iterator[tuple[int, str, str, str]]:
        """Add the pieces in a chunk, and yield those that say something new, as `OnCall` takes them.

        Args:
            deltas: The calls of the chunk.
            is_whole: Whether the chunk seems to be a whole message.
        """
        self._chunk += 1
        pieces = [_Call(delta if isinstance(delta, dict) else {}, self._chunk) for delta in deltas]
        if self._are_repeated(pieces, is_whole=is_whole):
            return
        for piece in pieces:
            before = self._before(piece)
            if before is None or self._begins(piece, before):
                before = piece
                before.number = len(self._calls)
                self._calls.append(piece)
                check_parts(len(self._calls))
            elif before.chunk != self._chunk and self._is_stated(piece) and self._key(before) == self._key(piece):
                continue
            else:
                before.extend(piece)
            self._by_index |= {each.index: before for each in (piece, before) if each.index is not None}
            self._by_id |= {piece.id: before} if piece.id else {}
            yield before.number, before.id, before.name, piece.text

    def result(self) -> list[dict[str, Any]]:
        """The calls, as a whole message has them."""
        return [call.result() for call in self._calls]

    def _before(self, piece: _Call) -> _Call | None:
        """The call that a piece may continue."""
        if piece.is_opening and piece.index == len(self._calls) and piece.index not in self._by_index:
            return None
        by_id = self._by_id.get(piece.id)
        is_elsewhere = by_id is not None and piece.name and None not in (piece.index, by_id.index)
        if by_id is not None and not (is_elsewhere and piece.index != by_id.index):
            return by_id
        newest = self._calls[-1] if self._calls else None
        if piece.index is None:
            return newest
        is_rest = newest is not None and not (piece.name or piece.id or self._is_whole(newest))
        return self._by_index.get(piece.index, newest if is_rest else None)

    def _begins(self, piece: _Call, before: _Call) -> bool:
        """Whether a piece is the first one of another call."""
        if not piece.name or not before.name:
            return False
        if piece.chunk in (before.chunk, before.newest):
            return True
        is_same_id = bool(piece.id) and piece.id == before.id
        if piece.name != before.name:
            return self._is_whole(before) if is_same_id else bool(piece.id or before.arguments)
        if is_same_id or not self._is_whole(before):
            return False
        if piece.id and piece.index is None:
            return True
        is_begun = not piece.id and self._key(before)[1] == "{}"  # some servers begin arguments so
        return not is_begun and self._key(piece) != self._key(before)

    def _are_repeated(self, pieces: list[_Call], *, is_whole: bool) -> bool:
        """Whether the pieces of a chunk are all calls so far once more, and not other calls that equal them.

        That is so if they have the ids or the indexes of those, or come whole where those came in pieces. What goes on
        counting with new ids is new.
        """
        if not pieces or len(pieces) != len(self._calls) or not all(map(self._is_stated, pieces)):
            return False
        if all(piece.id and piece.id not in self._by_id and self._goes_on(piece.index) for piece in pieces):
            return False
        known = (piece.id in self._by_id or piece.index in self._by_index for piece in pieces)
        keys = [self._key(call) for call in self._calls]
        is_cut = any(call.count > 1 and key[1] not in ("", "{}") for call, key in zip(self._calls, keys, strict=True))
        return (is_whole or is_cut or all(known)) and Counter(map(self._key, pieces)) == Counter(keys)

    def _goes_on(self, index: Any) -> bool:
        """Whether an index is larger than those of all calls so far."""
        return isinstance(index, int) and all(
            isinstance(call.index, int) and call.index < index for call in self._calls
        )

    def _key(self, call: _Call) -> tuple[str, str]:
        """What equal calls have in common."""
        objects, text = self._parsed(call)
        return call.name, json.dumps(objects[0][0], sort_keys=True) if len(objects) == 1 else text

    def _is_stated(self, piece: _Call) -> bool:
        """Whether a piece could be a whole call."""
        return bool(piece.name) and (not piece.arguments or self._is_whole(piece))

    def _is_whole(self, call: _Call) -> bool:
        is_ended = bool(call.arguments) and call.arguments[-1].rstrip().endswith("}")
        return is_ended and bool(self._parsed(call)[0])

    def _parsed(self, call: _Call) -> tuple[list[tuple[Any, str]], str]:
        """The objects in a call's arguments, and their text. After `_COMPARED_CHARS` no call equals another one."""
        if self._left <= 0:
            return [], f"call {call.chunk}"
        text = whole_arguments(call.arguments).strip()
        objects = _objects_in(text)
        self._left -= sum(map(len, call.arguments)) + len(call.arguments) + _COST_OF_OBJECT * len(objects)
        return objects, text


class _Call:
    """One call, or a piece of one."""

    def __init__(self, delta: dict[str, Any], chunk: int) -> None:
        index, function = delta.get("index"), delta.get("function")
        function = function if isinstance(function, dict) else {}
        self.index = index if isinstance(index, int | str) else None
        self.chunk = self.newest = chunk
        self.number = 0
        self.count = 1
        self.id, self.name = as_text(delta.get("id")), as_text(function.get("name"))
        self.kind = as_text(delta.get("type"))
        self.arguments = [text] if (text := as_text(function.get("arguments"))) else []
        self._fields = join_deltas({}, {name: value for name, value in delta.items() if name not in _OF_CALL})
        more = {name: value for name, value in function.items() if name not in ("name", "arguments")}
        self._of_function = join_deltas({}, more)

    @property
    def is_opening(self) -> bool:
        """Whether it is as the first piece of a call is, which may lack a name: with its type, and nothing of arguments."""
        return bool(self.kind) and not self.arguments

    @property
    def text(self) -> str:
        """Its arguments as they were sent."""
        return "".join(self.arguments)

    def extend(self, piece: _Call) -> None:
        """Add a piece."""
        self.id, self.kind = self.id or piece.id, piece.kind or self.kind
        self.index = piece.index if self.index is None else self.index
        if piece.name:
            self.newest = piece.chunk
            is_again = piece.name == self.name or piece.name.startswith(self.name)
            self.name = piece.name if is_again else self.name + piece.name
        self.arguments += piece.arguments
        self.count += 1
        join_deltas(self._fields, piece._fields)
        join_deltas(self._of_function, piece._of_function)

    def result(self) -> dict[str, Any]:
        kind = self.kind or "function"
        if kind != "function" and not self.name and not self.arguments:
            return {"id": self.id, "type": kind, **self._fields}
        function = {"name": self.name, "arguments": whole_arguments(self.arguments), **self._of_function}
        return {"id": self.id, "type": "function", **self._fields, "function": function}


def whole_arguments(pieces: list[str]) -> str:
    """The arguments in the pieces of a call: their text, if that is an object; otherwise what they repeat.

    Where they are several objects, or none, the text stays as it was sent: it is told as invalid JSON.
    """
    is_begin = (piece.strip() in ("", "{}") for piece in pieces[:-1])  # some servers begin so
    pieces = pieces[next((n for n, is_empty in enumerate(is_begin) if not is_empty), max(len(pieces) - 1, 0)) :]
    text = "".join(pieces)
    if objects := _objects_in(text):
        told = [each for each in objects if each[0]] or objects[:1]
        return text if len(objects) == 1 or any(each[0] != told[0][0] for each in told) else told[0][1]
    if len(pieces) > 1:
        is_growing = all(piece.startswith(before) for before, piece in pairwise(pieces))
        if is_growing or pieces[-1].startswith("".join(pieces[:-1])):
            return pieces[-1]
    return text


def _objects_in(text: str) -> list[tuple[Any, str]]:
    """The JSON objects that a text is made of, each with its part of the text; none if there is anything else in it."""
    found: list[tuple[Any, str]] = []
    start = 0
    text = text.strip()
    try:
        while start < len(text) and text.endswith("}"):
            value, end = json.JSONDecoder().raw_decode(text, start)
            if not isinstance(value, dict):
                return []
            found.append((value, text[start:end]))
            start = _SPACE.match(text, end).end()  # type: ignore[union-attr] # it matches nothing as well
    except (ValueError, RecursionError):
        return []
    return found
