"""`@score`: a function that rates a run of an experiment (docs/scores.md)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.errors import DeclarationError
from mulligan.schema.plain_function import callable_name

MOST_SCORES, SCORE_NAME_CHARS = 20, 100
_PARAMETERS = 3


@dataclass(frozen=True)
class Score:
    """A function that `@score` has declared. Calling it calls the function.

    Attributes:
        function: The function.
        name: Its name for `--score`: `module:function`.
    """

    function: Callable[..., Any]
    name: str

    def __call__(self, case: Any, result: Any, steps: Any) -> Any:
        """Rate a run: what the function returns."""
        return self.function(case, result, steps)


def score(function: Callable[..., Any]) -> Score:
    """Declare a function that rates the runs of an experiment, in a module that the worker loads.

    Args:
        function: Gets the case (`case.input` is what was asked, `case.expected` the output to compare with), the new run's
            `RunResult` and its steps (`list[Step]`). It may be `async`. It returns a number (True is 1), or a mapping of
            names to numbers, of which more is better.

    Raises:
        DeclarationError: it is no function of three parameters at the top level of a module.
    """
    name = callable_name(function)
    try:
        inspect.signature(function).bind(*[None] * _PARAMETERS)
    except (TypeError, ValueError):
        raise DeclarationError(f"@score: {name} must take three arguments: case, result, steps.") from None
    where, qualified = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not where or not qualified or "<" in qualified:
        raise DeclarationError(f"@score: {name} must be a function at the top level of a module.")
    return Score(function, f"{where}:{qualified}")


def read_score(value: Any) -> float | dict[str, float]:
    """What a score function has returned, as a number or a mapping of names to numbers.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, Mapping):
        return _number(value, "it")
    if not 0 < len(value) <= MOST_SCORES:
        raise ValueError(f"the mapping has {len(value)} entries; give 1 to {MOST_SCORES}.")
    scores = {}
    for name, each in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= SCORE_NAME_CHARS:
            raise ValueError(f"a name in the mapping is not a text of 1 to {SCORE_NAME_CHARS} characters.")
        scores[name] = _number(each, repr(name))
    return scores


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool | int | float):
        number = float(value) if abs(value) < 1e300 else math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{what} is {type(value).__name__}; it must be a finite number, or a mapping of names to numbers.")
