"""Generated parameters with values for them, some of them written as models write them: a number as a text, null for nothing."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import ConfigDict, Field, create_model

__all__ = ["Case", "function_of", "random_case"]

JSON_VALUES = [
    None,
    True,
    False,
    0,
    1,
    7,
    -1,
    5.0,
    1.5,
    "",
    "a",
    "5",
    "1.5",
    "true",
    "null",
    "[1]",
    "{}",
    [],
    [1],
    {},
    {"a": 1},
]
"""Values of each type, for any place."""
CONFIG = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Case:
    """The types of parameters, those with a default, and arguments that may be of these types."""

    hints: dict[str, Any]
    defaults: dict[str, Any]
    arguments: dict[str, Any]


def random_case(random: Random) -> Case:
    """One to four parameters, with arguments."""
    hints: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for name in ("a", "b", "c", "d")[: random.randint(1, 4)]:
        hints[name], value = _type(random, 3)
        if random.random() < 0.5:
            defaults[name] = value
        if name not in defaults or random.random() < 0.8:
            arguments[name] = _as_written(random, value)
    return Case(hints, defaults, arguments)


def function_of(case: Case, called: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """A function with the parameters of a case. It hands its arguments to `called`."""

    def generated(**arguments: Any) -> Any:
        return called(arguments)

    generated.__annotations__ = dict(case.hints)
    ordered = sorted(case.hints, key=lambda name: name in case.defaults)
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=case.defaults.get(name, inspect.Parameter.empty)
        )
        for name in ordered
    ]
    generated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return generated


def _type(random: Random, depth: int) -> tuple[Any, Any]:
    """A type, and a JSON value of it."""
    simple: list[tuple[Any, Any]] = [
        (int, random.choice([0, 1, 5, -3])),
        (Annotated[int, Field(ge=0, le=9)], 5),
        (float, random.choice([1.5, 2, 0.0])),
        (bool, random.choice([True, False])),
        (str, random.choice(["a", "5", "true", "[1]", ""])),
        (Literal["x", "y"], "x"),
        (Literal[1, 2], 2),
        (Union[int, str], random.choice([5, "5"])),  # noqa: UP007 - as it is built for others
        (Union[int, bool, None], random.choice([5, True, None])),  # noqa: UP007
    ]
    if depth == 0 or random.random() < 0.5:
        return random.choice(simple)
    inner, value = _type(random, depth - 1)
    kind = random.choice(["list", "dict", "optional", "object", "objects", "list or number"])
    if kind == "list":
        return list[inner], [value] * random.randint(0, 2)  # type: ignore[valid-type]
    if kind == "dict":
        return dict[str, inner], {"k": value}  # type: ignore[valid-type]
    if kind == "optional":
        return Optional[inner], random.choice([value, None])  # noqa: UP045 - as it is built for others
    if kind == "list or number":
        return Union[list[inner], int], random.choice([[value], 7])  # type: ignore[valid-type]  # noqa: UP007
    model: Any = create_model("Inner", __config__=CONFIG, n=(inner, ...), m=(int, 3))
    given = {"n": value} | ({"m": 4} if random.random() < 0.5 else {})
    if kind == "object":
        return model, given
    other: Any = create_model("Other", __config__=CONFIG, n=(inner, ...), z=(bool, ...))
    return Union[model, other], random.choice([given, {"n": value, "z": True}])  # noqa: UP007


def _as_written(random: Random, value: Any) -> Any:
    """The value as a model may write it, or, rarely, another value."""
    if random.random() < 0.05:
        return random.choice(JSON_VALUES)
    if isinstance(value, list):
        value = [_as_written(random, each) for each in value]
    elif isinstance(value, dict):
        value = {name: _as_written(random, each) for name, each in value.items()}
        if random.random() < 0.2:
            value["m"] = random.choice([None, "4", 4])
    if random.random() < 0.6:
        return value
    if isinstance(value, bool):
        return random.choice([json.dumps(value), str(value), int(value), "yes"])
    if isinstance(value, str):
        return random.choice([value, None])
    return random.choice([json.dumps(value), str(value), f" {json.dumps(value)} ", None])
