"""`typing.TypedDict` for pydantic, which before Python 3.12 supports only `typing_extensions.TypedDict`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import typing_extensions


def replace_typed_dicts(hint: Any) -> Any:
    """A type in which each `typing.TypedDict` is replaced by an equal `typing_extensions.TypedDict`; other types unchanged.

    pydantic refuses them on Python 3.11, as `typing` does not record there which keys are (Not)Required in a base class
    (https://docs.pydantic.dev/latest/errors/usage_errors/#typed-dict-version).
    """
    return hint if sys.version_info >= (3, 12) else _replaced(hint, {})


def _replaced(hint: Any, replacements: dict[Any, Any]) -> Any:
    if is_typeddict(hint) and type(hint).__module__ == "typing":
        return _typing_extensions_dict(hint, replacements)
    arguments = get_args(hint)
    if not arguments:
        return hint
    if get_origin(hint) is Annotated:
        return Annotated[(_replaced(arguments[0], replacements), *hint.__metadata__)]
    replaced = tuple(_replaced(argument, replacements) for argument in arguments)
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    origin = get_origin(hint)
    return Union[replaced] if not hasattr(origin, "__class_getitem__") else origin[replaced]  # noqa: UP007 - built at run time


def _typing_extensions_dict(original: Any, replacements: dict[Any, Any]) -> Any:
    if original in replacements:
        return replacements[original]
    replacements[original] = original  # not replaced inside itself where it refers to itself; pydantic reports it
    fields = {
        name: typing_extensions.Required[_replaced(hint, replacements)]
        if name in original.__required_keys__
        else typing_extensions.NotRequired[_replaced(hint, replacements)]
        for name, hint in get_type_hints(original, include_extras=True).items()
    }
    replacement: Any = typing_extensions.TypedDict(original.__name__, fields)  # type: ignore[misc]
    replacement.__doc__ = original.__doc__
    replacement.__module__ = original.__module__
    replacements[original] = replacement
    return replacement
