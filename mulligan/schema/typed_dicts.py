"""`typing.TypedDict` for pydantic, which reads only that of `typing_extensions` before Python 3.12."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import typing_extensions


def replace_typed_dicts(hint: Any) -> Any:
    """The type with each `typing.TypedDict` in it written anew, so that pydantic reads it; any other type as it is.

    pydantic refuses them on Python 3.11, as `typing` cannot say there which keys were given as (Not)Required in a
    base class (https://docs.pydantic.dev/latest/errors/usage_errors/#typed-dict-version).
    """
    return hint if sys.version_info >= (3, 12) else _rewritten(hint, {})


def _rewritten(hint: Any, done: dict[Any, Any]) -> Any:
    if is_typeddict(hint) and type(hint).__module__ == "typing":
        return _typed_dict(hint, done)
    arguments = get_args(hint)
    if not arguments:
        return hint
    if get_origin(hint) is Annotated:
        return Annotated[(_rewritten(arguments[0], done), *hint.__metadata__)]
    again = tuple(_rewritten(argument, done) for argument in arguments)
    if all(new is old for new, old in zip(again, arguments, strict=True)):
        return hint
    origin = get_origin(hint)
    return Union[again] if not hasattr(origin, "__class_getitem__") else origin[again]  # noqa: UP007 - made at run time


def _typed_dict(given: Any, done: dict[Any, Any]) -> Any:
    if given in done:
        return done[given]
    done[given] = given  # one that holds itself stays as it is in there; pydantic says so
    fields = {
        name: typing_extensions.Required[_rewritten(hint, done)]
        if name in given.__required_keys__
        else typing_extensions.NotRequired[_rewritten(hint, done)]
        for name, hint in get_type_hints(given, include_extras=True).items()
    }
    made: Any = typing_extensions.TypedDict(given.__name__, fields)  # type: ignore[misc]
    made.__doc__ = given.__doc__
    made.__module__ = given.__module__
    done[given] = made
    return made
