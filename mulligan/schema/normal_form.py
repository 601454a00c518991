"""The normal form of validated arguments: JSON that is the same for all spellings of the same values, in every process.

It is made of Python's values, not of what the model wrote: sets are sorted, numbers are what they are worth, moments are in
UTC. What equals its default is left out, at every depth. Where nothing of that applies it is the JSON of the arguments.
A key that begins with `MARK` says what JSON has no form for.
"""

from __future__ import annotations

import builtins
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType
from typing import Any

from pydantic import BaseModel, JsonValue, RootModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from mulligan.schema.argument_digest import normal_text
from mulligan.schema.declared_types import Types, field_types, item_types, key_types, may_be_other_object
from mulligan.schema.ordered_sets import in_order, written_name

MARK = "\0"
_MISSING: Any = object()
_LARGEST_EXPONENT = 308
"""That of a float. The digits of a larger number are not written out: `1e999999` is a short text."""


_PLAIN_TYPES = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)  # noqa: DTZ001


class NoNormalForm(Exception):
    """A value of a type that is not known here."""


def normal_form(value: Any, recorded: JsonValue, written: JsonValue) -> JsonValue:
    """The normal form of a validated value.

    Args:
        value: The value.
        recorded: Its JSON, which is the normal form of parts whose type is not known here.
        written: The JSON that it was validated from. It tells what was left out of a dataclass.

    Raises:
        Exception: users' code has raised it: a property, a comparison, a default factory.
    """
    return _normal(value, _Place((type(value),), recorded, written))


@dataclass(frozen=True)
class _Place:
    """What is known of a value beside itself: the types that are declared for it, and its JSON as in `normal_form`."""

    types: Types = (Any,)
    recorded: Any = _MISSING
    written: Any = _MISSING

    def field(self, names: Sequence[Any], types: Types) -> _Place:
        """The place of a field that has one of these names in JSON."""
        recorded, written = (
            next((whole[name] for name in names if name in whole), _MISSING) if isinstance(whole, dict) else _MISSING
            for whole in (self.recorded, self.written)
        )
        return _Place(types, recorded, written)

    def item(self, index: int, count: int, types: Types) -> _Place:
        """The place of an item of a list of `count` items."""
        recorded, written = (
            whole[index] if isinstance(whole, list) and len(whole) == count else _MISSING
            for whole in (self.recorded, self.written)
        )
        return _Place(types, recorded, written)


@dataclass(frozen=True)
class _Field:
    """A field with its value. `names`: in JSON, the one that it is written with first. `is_given`: it was not left out."""

    names: list[str]
    value: Any
    types: Types
    default: Any = PydanticUndefined
    factory: Any = None
    is_given: bool | None = None
    """None: the JSON that it was validated from tells."""


def _normal(value: Any, place: _Place) -> JsonValue:
    try:
        return _known(value, place)
    except NoNormalForm:
        if place.recorded is _MISSING:
            raise
        return place.recorded  # type: ignore[no-any-return]


def _known(value: Any, place: _Place) -> JsonValue:
    """The normal form of a value of a type that is known here.

    Raises:
        NoNormalForm: it is of another one.
    """
    if isinstance(value, Enum):
        return _normal(value.value, _Place(recorded=place.recorded))
    for kinds, normal in _KINDS:
        if isinstance(value, kinds):
            return normal(value, place)
    if dataclasses.is_dataclass(value):
        return _object(value, _dataclass_fields(value), place)
    if hasattr(value, "get_secret_value"):
        return _normal(value.get_secret_value(), _Place())
    if isinstance(value, Iterator):
        raise NoNormalForm  # it can be read once
    try:
        return to_jsonable_python(value)  # type: ignore[no-any-return] # a UUID, a path, an address
    except ValueError as error:
        raise NoNormalForm from error


def _plain(value: Any, place: _Place) -> JsonValue:  # noqa: ARG001
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may show something else
    return next((kind(value) for kind in (bool, int) if isinstance(value, kind)), None)


def _float(value: float, place: _Place) -> JsonValue:  # noqa: ARG001
    return float(value) if math.isfinite(value) else {MARK: repr(float(value))}


def _decimal(value: Decimal, place: _Place) -> JsonValue:  # noqa: ARG001
    """A number of JSON, if a float or an integer is worth just as much."""
    if not value.is_finite():
        return {MARK: str(value)}
    if not value:
        return 0
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if abs(value.adjusted()) < _LARGEST_EXPONENT:
        if exponent >= 0 or not any(digits[exponent:]):
            return int(value)
        if Decimal(repr(float(value))) == value:
            return float(value)
    significant = "".join(map(str, digits)).rstrip("0")
    return {MARK: f"{'-' if sign else ''}{significant}e{exponent + len(digits) - len(significant)}"}


def _moment(value: datetime, place: _Place) -> JsonValue:  # noqa: ARG001
    if value.utcoffset() is None:
        return value.replace(tzinfo=None).isoformat()
    # Not `astimezone`: UTC may have no date for a moment of the first or the last year.
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    try:
        return f"{(_EPOCH + since).isoformat()}Z"
    except OverflowError:
        return {f"{MARK}moment": since // _MICROSECOND}


def _date(value: date, place: _Place) -> JsonValue:  # noqa: ARG001
    return value.isoformat()


def _time(value: time, place: _Place) -> JsonValue:  # noqa: ARG001
    if (offset := value.utcoffset()) is None:
        return value.replace(tzinfo=None).isoformat()
    since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return {f"{MARK}time": (since - offset) // _MICROSECOND}


def _duration(value: timedelta, place: _Place) -> JsonValue:  # noqa: ARG001
    return {f"{MARK}duration": value // _MICROSECOND}


def _bytes(value: bytes | bytearray, place: _Place) -> JsonValue:  # noqa: ARG001
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return {f"{MARK}bytes": value.hex()}


def _set(value: Set[Any], place: _Place) -> JsonValue:
    inside = _Place(item_types(place.types))
    return in_order({normal_text(each): each for each in (_normal(item, inside) for item in value)}.values())


def _list(value: list[Any] | tuple[Any, ...] | deque[Any], place: _Place) -> JsonValue:
    types, count = item_types(place.types), len(value)
    items = [_normal(each, place.item(index, count, types)) for index, each in enumerate(value)]
    is_named = hasattr(value, "_fields") and place.types != (type(value),)  # a named tuple, in place of others
    return {f"{MARK}{type(value).__qualname__}": items} if is_named else items


def _mapping(value: Mapping[Any, Any], place: _Place) -> JsonValue:
    return {
        _key(key): _normal(each, place.field([key, str(key)], key_types(place.types, key)))
        for key, each in value.items()
    }


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        return _key(key.value)
    if isinstance(key, str):
        return f"{MARK}{key}" if key.startswith(MARK) else str(key)
    return str(key) if type(key) is int else MARK + normal_text(_normal(key, _Place()))


def _model(value: BaseModel, place: _Place) -> JsonValue:
    if isinstance(value, RootModel):
        return _normal(value.root, dataclasses.replace(place, types=field_types(type(value))["root"]))
    return _object(value, _model_fields(value), place)


def _model_fields(value: BaseModel) -> Iterator[_Field]:
    types = field_types(type(value))
    for name, info in type(value).model_fields.items():
        if name in value.model_fields_set:
            names = [written_name(name, info), name, *_read_names(info.validation_alias)]
            each = value.__dict__.get(name)
            yield _Field(names, each, types[name], info.default, info.default_factory, is_given=True)
    for name, each in (value.__pydantic_extra__ or {}).items():
        yield _Field([name, name], each, (Any,), is_given=True)


def _dataclass_fields(value: Any) -> Iterator[_Field]:
    types, infos = field_types(type(value)), getattr(type(value), "__pydantic_fields__", {})
    for field in dataclasses.fields(value):
        if not field.init or not hasattr(value, field.name):
            continue
        info = infos.get(field.name)
        names = [written_name(field.name, info), field.name, *_read_names(info.validation_alias if info else None)]
        default = PydanticUndefined if field.default is dataclasses.MISSING else field.default
        factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
        if info is not None:
            default, factory = info.default, info.default_factory
        yield _Field(names, getattr(value, field.name), types[field.name], default, factory)


def _read_names(alias: Any) -> list[str]:
    """The names under which a field is read."""
    return [each for each in getattr(alias, "choices", [alias]) if isinstance(each, str)]


def _object(value: Any, fields: Iterable[_Field], place: _Place) -> JsonValue:
    """The fields that do not equal their default.

    Where a value might have been an object of another type, its own is told: without their defaults, two of them may be
    the same. What a dataclass was validated from beside its fields is told too: it may have become a part of it.
    """
    result: dict[str, JsonValue] = {}
    rest = dict(place.written) if not isinstance(value, BaseModel) and isinstance(place.written, dict) else {}
    for field in fields:
        inside = place.field(field.names, field.types)
        for name in field.names:
            rest.pop(name, None)
        has_default = field.default is not PydanticUndefined or field.factory is not None
        was_left_out = field.is_given is None and isinstance(place.written, dict) and inside.written is _MISSING
        if has_default and was_left_out and _may_differ_from_default(type(value), field):
            continue
        normal = _normal(field.value, inside)
        if not (has_default and _equals_default(field, normal)):
            taken = field.names[0] in result
            result[f"{MARK}{field.names[1]}" if taken else field.names[0]] = normal
    if rest:
        result[f"{MARK}rest"] = rest
    if may_be_other_object(type(value), place.types):
        result[f"{MARK}type"] = _type_name(type(value), place.types)
    return result


def _may_differ_from_default(kind: type, field: _Field) -> bool:
    """Whether a field that was left out may have another value than its default."""
    return hasattr(kind, "__post_init__") or (field.factory is not None and not _is_constant_factory(field.factory))


def _type_name(kind: type, types: Types) -> str:
    """The name of a type, with its module only where another type has the same name: modules are renamed."""
    name = kind.__qualname__
    is_shared = any(each is not kind and getattr(each, "__qualname__", "") == name for each in types)
    return f"{kind.__module__}.{name}" if is_shared else name


def _equals_default(field: _Field, normal: JsonValue) -> bool:
    """Whether a value that was given is its field's default. What a factory makes of clocks or chance equals no value."""
    if field.factory is not None and not _is_constant_factory(field.factory):
        return False
    default = field.default if field.factory is None else field.factory()
    if type(default) is type(field.value) and isinstance(default, Sized) and len(default) != len(field.value):
        return False  # a long default is not read for each of many short values
    try:
        return normal_text(_normal(default, _Place(field.types))) == normal_text(normal)
    except NoNormalForm:
        return type(default) is type(field.value) and bool(default == field.value)


def _is_constant_factory(factory: Callable[..., Any]) -> bool:
    """Whether a default factory makes the same value at each call, in every process, as far as its code shows.

    It may be a type, or a function without parameters that names nothing but types: no clock, no counter.
    """
    if _is_plain_type(factory):
        return True
    if not isinstance(factory, FunctionType) or factory.__closure__ or factory.__code__.co_argcount:
        return False
    names = {**vars(builtins), **factory.__globals__}
    return all(_is_plain_type(names.get(name)) for name in factory.__code__.co_names)


def _is_plain_type(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    return kind in _PLAIN_TYPES or issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


_KINDS: tuple[tuple[Any, Callable[[Any, _Place], JsonValue]], ...] = (
    ((str, int, type(None)), _plain),  # a bool is an int
    (float, _float),
    (BaseModel, _model),
    (Mapping, _mapping),
    (Set, _set),
    ((list, tuple, deque), _list),
    (Decimal, _decimal),
    (datetime, _moment),  # before `date`, which it is
    (date, _date),
    (time, _time),
    (timedelta, _duration),
    ((bytes, bytearray), _bytes),
)
