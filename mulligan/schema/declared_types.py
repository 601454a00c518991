"""The types that are declared for the parts of a value: those that a field, an item or the value of a key may have."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic import BaseModel

Types = tuple[Any, ...]
"""Types without unions, of which a value has one, if it is not None. `Any`: nothing is known."""
_UNIONS = (Union, types.UnionType)
_WRAPPERS = (
    *(Annotated, typing.Required, typing.NotRequired, typing.Final),
    *(typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly),
)
_ALIASES = tuple({typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType)})


def alternatives(declared: Any) -> Types:
    """The types of which a declared type is the union."""
    return tuple(dict.fromkeys(_alternatives(declared)))


def item_types(of: Types) -> Types:
    """The types that the items of a list, a tuple or a set may have."""
    return _union(
        [argument for argument in get_args(each) if argument is not Ellipsis] or [Any]
        for each in of
        if not _is_mapping(each) and (each is Any or get_args(each) or each in (list, tuple, set, frozenset))
    )


def key_types(of: Types, key: Any) -> Types:
    """The types that the value of a key in a dict may have."""
    found: list[Any] = []
    for each in of:
        if typing_extensions.is_typeddict(get_origin(each) or each):
            found += field_types(get_origin(each) or each).get(key, (Any,))
        elif each is Any or _is_mapping(each):
            found.append(get_args(each)[-1] if get_args(each) else Any)
    return _union([found])


def may_be_other_object(kind: type, of: Types) -> bool:
    """Whether a value of the class `kind` stands where an object of another type might stand as well."""
    return [each for each in of if _is_object(each)] != [kind]


def field_types(kind: Any) -> Mapping[str, Types]:
    """The types of the fields of a model, a dataclass or a TypedDict."""
    return _field_types(kind)


@lru_cache(maxsize=1_000)
def _field_types(kind: Any) -> Mapping[str, Types]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: alternatives(info.annotation) for name, info in kind.model_fields.items()}
    names = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - a type that is local to a function; its evaluation runs users' code
        hints = {}
    return dict.fromkeys(names, (Any,)) | {name: alternatives(hint) for name, hint in hints.items()}


def _union(groups: Any) -> Types:
    return tuple(dict.fromkeys(each for group in groups for declared in group for each in _alternatives(declared))) or (
        Any,
    )


def _alternatives(declared: Any) -> Iterator[Any]:
    origin = get_origin(declared)
    if declared is None or declared is type(None):
        return
    if origin in _UNIONS:
        for each in get_args(declared):
            yield from _alternatives(each)
    elif origin in _WRAPPERS:
        yield from _alternatives(get_args(declared)[0])
    elif isinstance(declared, _ALIASES):
        yield from _alternatives(declared.__value__)
    elif isinstance(declared, typing.NewType):
        yield from _alternatives(declared.__supertype__)
    else:
        yield Any if isinstance(declared, (str, typing.ForwardRef, typing.TypeVar)) else declared


def _is_object(declared: Any) -> bool:
    """Whether values of a type are objects in JSON, or may be."""
    kind = get_origin(declared) or declared
    if declared in (Any, object) or isinstance(kind, _ALIASES) or _is_mapping(declared):
        return True
    if typing_extensions.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return True
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_mapping(declared: Any) -> bool:
    kind = get_origin(declared) or declared
    return isinstance(kind, type) and issubclass(kind, Mapping)
