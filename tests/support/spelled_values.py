"""Random types with values that can be written in several ways: what equal arguments of calls look like, and others.

As a program it prints the recorded arguments and the digests of some random calls: `python -m … FIRST_SEED COUNT`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, Union
from uuid import UUID, uuid4

import typing_extensions
from pydantic import AliasChoices, AnyUrl, Field, Json, RootModel, SecretStr, create_model
from pydantic.dataclasses import dataclass as pydantic_dataclass

from mulligan import Tool, tool
from mulligan.activities.answers.prepare_call import ValidArguments, accepted
from mulligan.schema.argument_digest import argument_digest

_numbers = itertools.count()
LEFT_OUT = "(what the factory makes)"


class Colour(Enum):
    RED = "red"
    ONE = 1


@dataclass(frozen=True)
class Kind:
    """A type. A value is known by its meaning, which is hashable: equal ones are the same value of the type.

    Attributes:
        hint: The type.
        mean: Makes a meaning.
        spell: Writes a meaning as JSON, in one of its ways.
        python: The value of Python that a meaning is, for defaults; None: there is none.
    """

    hint: Any
    mean: Callable[[Random], Any]
    spell: Callable[[Any, Random], Any]
    python: Callable[[Any], Any] | None = None
    is_hashable: bool = True
    is_optional: bool = False


def random_kind(chance: Random, levels: int = 3, *, hashable: bool = False) -> Kind:
    """A random type, within which others are nested up to some levels."""
    makers = [*_SCALARS] * (1 if levels else 3)
    if levels:
        makers += [*_NESTED_HASHABLE, *_NESTED_HASHABLE] + ([] if hashable else [*_NESTED, *_NESTED])
    while True:
        kind = chance.choice(makers)(chance, levels - 1)
        if kind.is_hashable or not hashable:
            return kind


def _int(chance: Random, _: int) -> Kind:
    def spell(value: int, how: Random) -> Any:
        ways = [value, str(value)]
        if abs(value) < 2**53:
            ways += [float(value), f"{value}.0"]
        return how.choice(ways)

    return Kind(
        int, lambda how: how.choice([0, 1, -5, 100, 2**53 + 1, 2**53 + 2, 10**30, how.randrange(99)]), spell, int
    )


def _float(chance: Random, _: int) -> Kind:
    def spell(value: float, how: Random) -> Any:
        ways = [value, repr(value), f"{value!r}"]
        if value.is_integer() and abs(value) < 2**53:
            ways += [int(value)]
        if value == 0:
            ways += [-0.0, 0]
        return how.choice(ways)

    return Kind(float, lambda how: how.choice([0.0, 1.0, 0.1, -2.5, 1e23, 1e-7, how.random()]), spell, float)


def _decimal(chance: Random, _: int) -> Kind:
    texts = ["0", "12.5", "12", "1e2", "-0.1", "1e40", "1e400", "0.1234567890123456789012345", "1e-30"]

    def number(value: Fraction) -> Decimal:
        return next(Decimal(text) for text in texts if Fraction(Decimal(text)) == value)

    def spell(value: Fraction, how: Random) -> Any:
        exact = number(value)
        ways: list[Any] = [str(exact), f"{exact:E}"]
        if abs(exact.adjusted()) < 50:
            plain = f"{exact:f}"
            ways += [plain, f"{plain}00" if "." in plain else f"{plain}.00", plain if value < 0 else f"+{plain}"]
        if abs(exact.adjusted()) < 20 and len(exact.as_tuple().digits) < 10:
            ways += [float(exact)]
        return how.choice(ways)

    return Kind(Decimal, lambda how: Fraction(Decimal(how.choice(texts))), spell, number)


def _str(chance: Random, _: int) -> Kind:
    return Kind(
        str,
        lambda how: how.choice(["", "a", "A", "5", "true", "null", "1.0", "\0x", "ä", "[1]"]),
        lambda value, _: value,
        str,
    )


def _bool(chance: Random, _: int) -> Kind:
    return Kind(bool, lambda how: how.random() < 0.5, lambda value, how: how.choice([value, str(value).lower()]), bool)


def _moment(chance: Random, _: int) -> Kind:
    def mean(how: Random) -> datetime:
        micro = how.choice([0, 0, 500_000, 1])
        return datetime(2026, 11, how.randint(1, 28), how.randint(0, 3), 30, 0, micro, tzinfo=how.choice([UTC, None]))

    def spell(value: datetime, how: Random) -> str:
        if value.tzinfo is None:
            text = value.isoformat(sep=how.choice("T "))
            return text + (how.choice(["", ".0", ".000"]) if not value.microsecond else "")
        zone = timezone(timedelta(minutes=how.choice([0, 60, -330, 765])))
        local = value.astimezone(zone)
        fraction = (
            how.choice(["", ".0", ".000000"]) if not local.microsecond else f".{local.microsecond:06}".rstrip("0")
        )
        rest = local.isoformat()[-6:]
        return local.strftime("%Y-%m-%dT%H:%M:%S") + fraction + (how.choice(["Z", rest]) if rest == "+00:00" else rest)

    return Kind(datetime, mean, spell, lambda value: value)


def _date(chance: Random, _: int) -> Kind:
    return Kind(
        date,
        lambda how: date(2026, 2, how.randint(1, 5)),
        lambda value, how: value.isoformat() + how.choice(["", "T00:00:00"]),
        lambda value: value,
    )


def _time(chance: Random, _: int) -> Kind:
    def spell(value: time, how: Random) -> str:
        if value.tzinfo is None:
            return (
                value.isoformat()
                if value.second
                else how.choice(["%H:%M", "%H:%M:%S", "%H:%M:%S.000"]) and value.strftime("%H:%M:%S")
            )
        hours = how.choice([0, 2, -3])
        return f"{value.hour + hours:02}:{value.minute:02}:{value.second:02}" + (
            "Z" if not hours else f"{hours:+03}:00"
        )

    def mean(how: Random) -> time:
        return time(how.randint(10, 12), how.choice([0, 30]), how.choice([0, 5]), tzinfo=how.choice([UTC, None]))

    return Kind(time, mean, spell, lambda value: value)


def _duration(chance: Random, _: int) -> Kind:
    def spell(value: timedelta, how: Random) -> str:
        seconds = int(value.total_seconds())
        return how.choice([f"PT{seconds}S", f"PT{seconds // 60}M{seconds % 60}S", f"P0DT{seconds}S"])

    return Kind(timedelta, lambda how: timedelta(seconds=how.choice([0, 60, 61, 3600])), spell, lambda value: value)


def _uuid(chance: Random, _: int) -> Kind:
    def spell(value: UUID, how: Random) -> str:
        return how.choice([str(value), str(value).upper(), value.hex, f"urn:uuid:{value}", f"{{{value}}}"])

    return Kind(UUID, lambda how: UUID(int=how.randint(2**100, 2**100 + 5)), spell, lambda value: value)


def _texts(hint: Any, ways: dict[str, list[str]], python: Any, *, is_hashable: bool = True) -> Callable[..., Kind]:
    kind = Kind(hint, lambda how: how.choice([*ways]), lambda value, how: how.choice(ways[value]), python, is_hashable)
    return lambda chance, _: kind


_path = _texts(Path, {"a/b": ["a/b", "a//b", "./a/b", "a/b/"], "a": ["a", "a/."], "../a": ["../a"]}, Path)
_url = _texts(
    AnyUrl,
    {
        "1": ["https://example.org", "https://example.org/", "HTTPS://EXAMPLE.org/"],
        "2": ["https://example.org/a", "https://example.org:443/a"],
    },
    None,
)
_enum = _texts(Colour, {"red": ["red"]}, Colour)
_literal = _texts(Literal["x", "y"], {"x": ["x"], "y": ["y"]}, str)
_bytes = _texts(bytes, {"a": ["a"], "ä": ["ä"]}, str.encode)
_secret = _texts(SecretStr, {"a": ["a"], "b": ["b"]}, SecretStr)
_json = _texts(
    Json[dict[str, int]], {"1": ['{"a":1,"b":2}', '{"b": 2, "a": 1}'], "2": ['{"a": 2}']}, None, is_hashable=False
)


def _set(chance: Random, levels: int) -> Kind:
    inner = random_kind(chance, levels, hashable=True)

    def spell(value: frozenset[Any], how: Random) -> list[Any]:
        items = sorted(value, key=repr)
        items = [*items, *how.sample(items, how.randint(0, len(items)))]
        how.shuffle(items)
        return [inner.spell(each, how) for each in items]

    python = inner.python
    return Kind(
        set[inner.hint],  # type: ignore[name-defined]
        lambda how: frozenset(inner.mean(how) for _ in range(how.randint(0, 4))),
        spell,
        None if python is None else lambda value: {python(each) for each in value},
        is_hashable=False,
    )


def _frozenset(chance: Random, levels: int) -> Kind:
    kind = _set(chance, levels)
    python = kind.python
    hint = frozenset.__class_getitem__(kind.hint.__args__[0])
    return dataclasses.replace(
        kind, hint=hint, python=python and (lambda value: frozenset(python(value))), is_hashable=True
    )


def _list(chance: Random, levels: int) -> Kind:
    inner = random_kind(chance, levels)
    return Kind(
        list[inner.hint],  # type: ignore[name-defined]
        lambda how: tuple(inner.mean(how) for _ in range(how.randint(0, 3))),
        lambda value, how: [inner.spell(each, how) for each in value],
        None,
        is_hashable=False,
    )


def _tuple(chance: Random, levels: int) -> Kind:
    first, second = random_kind(chance, levels, hashable=True), random_kind(chance, levels, hashable=True)
    return Kind(
        tuple[first.hint, second.hint],  # type: ignore[name-defined]
        lambda how: (first.mean(how), second.mean(how)),
        lambda value, how: [first.spell(value[0], how), second.spell(value[1], how)],
    )


def _dict(chance: Random, levels: int) -> Kind:
    inner = random_kind(chance, levels)

    def spell(value: frozenset[Any], how: Random) -> dict[str, Any]:
        items = sorted(value, key=repr)
        how.shuffle(items)
        return {key: inner.spell(each, how) for key, each in items}

    def mean(how: Random) -> frozenset[Any]:
        return frozenset({key: inner.mean(how) for key in how.sample(["a", "b", "\0c"], how.randint(0, 3))}.items())

    return Kind(dict[str, inner.hint], mean, spell, is_hashable=False)  # type: ignore[name-defined]


def _optional(chance: Random, levels: int) -> Kind:
    return _or_none(random_kind(chance, levels))


def _or_none(inner: Kind) -> Kind:
    """A type that is the other one or None."""
    if inner.is_optional:
        return inner
    return Kind(
        Union[inner.hint, None],  # noqa: UP007 - built at run time
        lambda how: None if how.random() < 0.3 else (inner.mean(how),),
        lambda value, how: None if value is None else inner.spell(value[0], how),
        is_hashable=inner.is_hashable,
        is_optional=True,
    )


@dataclass(frozen=True)
class _Member:
    """A field. `default`: the meaning that it has where it is left out; `how`: as what it is declared."""

    name: str
    kind: Kind
    how: str
    default: Any = None
    value: Any = None

    def factory(self) -> Any:
        return (lambda: f"chance {uuid4().hex}") if self.how == "chance" else list


def _members(chance: Random, levels: int, *, hashable: bool = False) -> list[_Member]:
    members = []
    for name in "abc"[: chance.randint(1, 3)]:
        how = chance.choice(["required", "default", "default", "none", "list", "chance"])
        kind = random_kind(chance, levels, hashable=hashable)
        if how == "none":
            members.append(_Member(name, _or_none(kind), how, None, None))
        elif how == "list" and not hashable:
            kind = _list(chance, 0)
            members.append(_Member(name, kind, how, ()))
        elif how == "chance":
            members.append(_Member(name, _str(chance, 0), how, LEFT_OUT))
        elif how == "default" and kind.python is not None:
            default = kind.mean(chance)
            value = kind.python(default)
            is_usable = value is not None and not isinstance(value, (set, list))
            members.append(_Member(name, kind, "default" if is_usable else "required", default, value))
        else:
            members.append(_Member(name, kind, "required"))
    return sorted(members, key=lambda each: each.how != "required")


def _mean_all(members: list[_Member], how: Random) -> tuple[Any, ...]:
    return tuple(
        each.default if each.how != "required" and how.random() < 0.6 else each.kind.mean(how) for each in members
    )


def _spell_all(
    members: list[_Member], value: tuple[Any, ...], how: Random, *, has_aliases: bool = False
) -> dict[str, Any]:
    pairs = [
        (how.choice([each.name, f"{each.name}Alias"]) if has_aliases else each.name, each.kind.spell(part, how))
        for each, part in zip(members, value, strict=True)
        if part != LEFT_OUT and (each.how == "required" or part != each.default or how.random() < 0.5)
    ]
    how.shuffle(pairs)
    return dict(pairs)


def _object(hint: Any, members: list[_Member], *, hashable: bool = False, has_aliases: bool = False) -> Kind:
    return Kind(
        hint,
        lambda how: _mean_all(members, how),
        lambda value, how: _spell_all(members, value, how, has_aliases=has_aliases),
        is_hashable=hashable,
    )


def _field_of(each: _Member, **options: Any) -> Any:
    if each.how == "required":
        return Field(**options)
    if each.how in ("default", "none"):
        return Field(default=each.value, **options)
    return Field(default_factory=each.factory(), **options)


def _model(chance: Random, levels: int, *, hashable: bool = False) -> Kind:
    members, has_aliases = _members(chance, levels, hashable=hashable), chance.random() < 0.3
    fields: Any = {
        each.name: (
            each.kind.hint,
            _field_of(each, validation_alias=AliasChoices(f"{each.name}Alias", each.name))
            if has_aliases
            else _field_of(each),
        )
        for each in members
    }
    model = create_model(f"Model{next(_numbers)}", __config__={"frozen": True} if hashable else {}, **fields)
    return _object(model, members, hashable=hashable, has_aliases=has_aliases)


def _root_model(chance: Random, levels: int) -> Kind:
    inner = random_kind(chance, levels)
    return dataclasses.replace(inner, hint=RootModel[inner.hint], python=None, is_hashable=False)  # type: ignore[name-defined]


def _frozen_model(chance: Random, levels: int) -> Kind:
    return _model(chance, levels, hashable=True)


def _dataclass(chance: Random, levels: int) -> Kind:
    members = _members(chance, levels)
    fields: list[Any] = []
    for each in members:
        if each.how == "required":
            fields.append((each.name, each.kind.hint))
        elif each.how in ("default", "none"):
            fields.append((each.name, each.kind.hint, dataclasses.field(default=each.value)))
        else:
            fields.append((each.name, each.kind.hint, dataclasses.field(default_factory=each.factory())))
    made = dataclasses.make_dataclass(f"Data{next(_numbers)}", fields)
    return _object(pydantic_dataclass(made) if chance.random() < 0.5 else made, members)


def _typed_dict(chance: Random, levels: int) -> Kind:
    inner, other = random_kind(chance, levels), random_kind(chance, levels)
    fields = {"a": inner.hint, "b": typing_extensions.NotRequired[other.hint]}
    hint = typing_extensions.TypedDict(f"Dict{next(_numbers)}", fields)  # type: ignore[misc]

    def mean(how: Random) -> Any:
        return (inner.mean(how), (other.mean(how),) if how.random() < 0.5 else None)

    def spell(value: Any, how: Random) -> dict[str, Any]:
        rest = {} if value[1] is None else {"b": other.spell(value[1][0], how)}
        return {**rest, "a": inner.spell(value[0], how)}

    return Kind(hint, mean, spell, is_hashable=False)


def _named_tuple(chance: Random, levels: int) -> Kind:
    inner = random_kind(chance, levels, hashable=True)
    fields = [("a", inner.hint), ("b", int)]
    hint: Any = NamedTuple(f"Named{next(_numbers)}", fields)  # type: ignore[misc]
    hint.__new__.__defaults__ = (3,)
    hint._field_defaults = {"b": 3}

    def spell(value: Any, how: Random) -> Any:
        first = inner.spell(value[0], how)
        return [first] if value[1] == 3 and how.random() < 0.5 else [first, value[1]]

    return Kind(hint, lambda how: (inner.mean(how), how.choice([3, 4])), spell)


def _union(chance: Random, levels: int) -> Kind:
    """Two models that a field tells apart, with defaults that may be the same."""
    parts = []
    for tag in ("x", "y"):
        members = [each for each in _members(chance, levels) if each.how != "required"]
        fields: Any = {each.name: (each.kind.hint, _field_of(each)) for each in members}
        fields["kind"] = (Literal[tag], tag) if chance.random() < 0.5 else (Literal[tag], ...)
        parts.append((tag, members, create_model(f"Part{tag}{next(_numbers)}", **fields)))
    hint: Any = Union[parts[0][2], parts[1][2]]  # noqa: UP007

    def mean(how: Random) -> Any:
        number = how.randrange(2)
        return number, _mean_all(parts[number][1], how)

    def spell(value: Any, how: Random) -> Any:
        tag, members, _ = parts[value[0]]
        return {**_spell_all(members, value[1], how), "kind": tag}

    return Kind(hint, mean, spell, is_hashable=False)


_SCALARS: list[Callable[..., Kind]] = [
    *(_int, _float, _decimal, _str, _bool, _moment, _date, _time, _duration, _uuid),
    *(_path, _url, _enum, _literal, _bytes, _secret, _json),
]
_NESTED_HASHABLE: list[Callable[..., Kind]] = [_frozenset, _tuple, _frozen_model, _named_tuple]
_NESTED: list[Callable[..., Kind]] = [
    _set,
    _list,
    _dict,
    _optional,
    _model,
    _root_model,
    _dataclass,
    _typed_dict,
    _union,
]


def tool_of(kind: Kind) -> Tool:
    """A tool with one parameter of a type."""

    def take(value: Any) -> str:
        """Take it."""
        return str(value)

    take.__annotations__ = {"value": kind.hint, "return": str}
    return tool(take)


def written(kind: Kind, chance: Random, meaning: Any, of: Tool) -> ValidArguments:
    """The valid arguments of a call that writes a meaning in one of its ways."""
    found = accepted(of.arguments, {"value": kind.spell(meaning, chance)})
    assert isinstance(found, ValidArguments), found
    return found


def digest_in(found: ValidArguments) -> str:
    """The digest by which valid arguments are compared."""
    return found.digest or argument_digest(found.arguments)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        chance = Random(seed)
        kind = random_kind(chance)
        valid = written(kind, chance, kind.mean(chance), tool_of(kind))
        shown = "" if "chance" in str(valid.arguments) else json.dumps(valid.arguments)
        print(digest_in(valid), shown)
