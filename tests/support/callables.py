"""Callables at the top level of a module, as isolated tools."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from mulligan import Tool, tool

__all__ = ["ISOLATED", "logged", "travel"]

From = Annotated[int, Field(alias="from")]


def travel(from_: From, to: int, by: str = "train") -> str:
    """Travel."""
    return f"{from_} to {to} by {by}"


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that changes the result."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> str:
        return f"logged {function(*args, **kwargs)}"

    return inner


@logged
def decorated(from_: From, to: int) -> str:
    """Travel, with a log."""
    return travel(from_, to)


def open_to_all(from_: From, /, **others: int) -> str:
    """Travel by way of other places."""
    return f"{from_} {others}"


class Traveller:
    """Travels in one way."""

    way = "foot"

    def __init__(self, by: str) -> None:
        self.by = by

    def __call__(self, from_: From, to: int) -> str:
        return travel(from_, to, self.by)

    async def later(self, from_: From, to: int) -> str:
        """Travel later."""
        return travel(from_, to, self.by)

    @classmethod
    def of_class(cls, from_: From, to: int) -> str:
        """Travel as the class does."""
        return travel(from_, to, cls.way)

    @staticmethod
    def of_none(from_: From, to: int) -> str:
        """Travel."""
        return travel(from_, to)


class Rider(Traveller):
    """Travels on a horse."""

    way = "horse"


CALLABLES: dict[str, Callable[..., Any]] = {
    "function": travel,
    "decorated": decorated,
    "further arguments": open_to_all,
    "partial": functools.partial(travel, by="ship"),
    "partial of a partial": functools.partial(functools.partial(travel, by="ship"), by="plane"),
    "object": Traveller("car"),
    "bound method": Traveller("bus").later,
    "method of a derived class": Rider("mule").later,
    "class method": Traveller.of_class,
    "class method of a derived class": Rider.of_class,
    "static method": Traveller.of_none,
}
ISOLATED: dict[str, Tool] = {name: tool(name="t", isolated=True)(each) for name, each in CALLABLES.items()}
