"""Texts, objects and exceptions that users' code may hand to Mulligan, and that JSON, UTF-8 or Temporal cannot carry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

__all__ = ["EXCEPTIONS", "OBJECTS", "hostile_values", "texts"]

TEXTS = [
    "caf\udce9",
    "\ud800",
    "\ud83d\ude00",  # a whole pair, as two surrogates
    "nul \0, escape \x1b[2J, bell \a",
    "",
    "line\u2028separator\nand\rreturn",
    "\udce9" * 40_000,
    "x" * 3_000_000,
]


class Text(str):
    """A text whose methods raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("no bytes")


class Unreadable:
    """An object that raises whenever it is read."""

    def __repr__(self) -> str:
        raise SystemExit("caf\udce9")

    def __bool__(self) -> bool:
        raise KeyError("\ud800")

    __str__ = __repr__


class NamedBySurrogate(type):
    """A metaclass whose classes have a name that UTF-8 cannot write."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return "caf\udce9"


class RaisesInText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class NoAttributes(Exception):
    """An exception whose own fields cannot be read; those that Python needs to raise it can."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__" or not name.startswith("__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class NoDict(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no fields")


class EndlessText(Exception):
    def __str__(self) -> str:
        return str(self)


class Named(Exception, metaclass=NamedBySurrogate):
    pass


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that has no hash and takes no attributes."""

    fields: list[str]


LongName = type("Long" * 10_000, (Exception,), {})


def of_itself(text: str) -> BaseException:
    error = ValueError(text)
    error.__cause__ = error
    return error


def of_many_causes(text: str) -> BaseException:
    first = error = ValueError(text)
    for _ in range(300):
        error.__cause__ = error = ValueError(text)
    return first


def circular(text: str) -> list[Any]:
    value: list[Any] = [text]
    value.append(value)
    return value


def deep(text: str) -> Any:
    value: Any = text
    for _ in range(400):
        value = [value]
    return value


EXCEPTIONS: dict[str, Callable[[str], BaseException]] = {
    "ValueError": ValueError,
    "KeyError": KeyError,
    "OSError": lambda text: OSError(2, text, text),
    "StopIteration": StopIteration,
    "SystemExit": SystemExit,
    "UnicodeDecodeError": lambda text: UnicodeDecodeError("utf-8", b"\xff", 0, 1, text),
    "group": lambda text: ExceptionGroup(text, [ValueError(text)]),
    "raises in its text": RaisesInText,
    "a text that is a number": NoText,
    "a text without end": EndlessText,
    "without attributes": NoAttributes,
    "without a dictionary": NoDict,
    "a text whose methods raise": lambda text: ValueError(Text(text)),
    "not of a text": lambda text: ValueError(b"\xff", {text: 1}),
    "named by a surrogate": Named,
    "with a long name": LongName,
    "frozen": lambda text: Frozen([text]),
    "its own cause": of_itself,
    "of many causes": of_many_causes,
}
"""Exceptions of each kind, made of a text."""

OBJECTS: dict[str, Callable[[str], Any]] = {
    "a text whose methods raise": Text,
    "an object of texts": lambda text: {"a": [text, {text: None}], text: text},
    "a set": lambda text: {text},
    "a tuple as a key": lambda text: {(1, text): 2},
    "bytes": lambda _: b"\xff\xfe",
    "NaN": lambda _: float("nan"),
    "a long number": lambda _: 10**5_000,
    "circular": circular,
    "deep": deep,
    "unreadable": lambda _: Unreadable(),
    "a set of what is unreadable": lambda _: {Unreadable(), 1},
    "a list of what is unreadable": lambda text: [Unreadable(), text],
    "a lock": lambda _: threading.Lock(),
    "an object named by a surrogate": lambda _: NamedBySurrogate("A", (), {})(),
}
"""Values of each kind that is no text, made of a text."""


def texts() -> st.SearchStrategy[str]:
    """Any text, with halves of surrogate pairs."""
    return st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=()), max_size=30)


def hostile_values() -> st.SearchStrategy[tuple[str, str, str]]:
    """A text, and the names of an exception and an object that are made of it."""
    return st.tuples(texts(), st.sampled_from([*EXCEPTIONS]), st.sampled_from([*OBJECTS]))
