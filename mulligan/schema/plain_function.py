"""The function that runs when a callable is called: a `functools.partial`, a bound method, an object with `__call__`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, method or class that has the docstring and the types of a callable."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        elif _has_call_of_its_own(function):
            function = getattr(function, "__call__")  # noqa: B004, B009 - a type checker sees no such attribute
        else:
            return function


def callable_name(function: Callable[..., Any]) -> str:
    """The name of a callable: that of its function, or of its object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    if _has_call_of_its_own(function):
        return type(function).__name__
    return str(getattr(function, "__name__", "tool"))


def takes(function: Any, arguments: int) -> bool:
    """Whether it can be called with so many positional arguments. Nothing is known of some functions written in C."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _has_call_of_its_own(function: object) -> bool:
    """Whether it is an object with `__call__`. An object with `__wrapped__` counts as the function that it wraps."""
    if inspect.isroutine(function) or isinstance(function, type | functools.partial | staticmethod):
        return False
    return callable(function) and not hasattr(function, "__wrapped__")
