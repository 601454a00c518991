"""Generated callables of all kinds: functions, methods, objects with `__call__`, partials; each returns its arguments."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

__all__ = ["KINDS", "GeneratedCallable", "random_callable"]

KINDS = ["function", "async", "method", "classmethod", "staticmethod", "object", "decorated"]
ALIASES = {"from_": "from", "class_": "class", "first": "self", "second": "p0", "third": "model_config"}
"""Some parameters, and names for the model, among them those that Python and pydantic use."""


@dataclass
class GeneratedCallable:
    """A callable that returns {parameter: value} of its own parameters, and its further arguments under `**`.

    `names`: the parameters that the model gives a value, by the model's name. `bound`: the values of the others.
    """

    call: Callable[..., Any]
    names: dict[str, str]
    bound: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    takes_more: bool = False


@dataclass(frozen=True)
class _Parameter:
    name: str
    alias: str
    kind: str
    has_default: bool

    def source(self) -> str:
        annotated = f"Annotated[int, Field(alias={self.alias!r})]" if self.alias != self.name else "int"
        return f"{self.name}: {annotated}" + (" = -1" if self.has_default else "")


def random_callable(random: Random) -> GeneratedCallable:
    """A callable with up to five parameters; some of them may be bound by a `functools.partial`."""
    kind = random.choice(KINDS)
    names = random.sample([*ALIASES, "a", "b", "schema", "kwargs"], random.randint(0, 5))
    kinds = sorted(random.choice(["positional", "usual", "keyword"]) for _ in names)
    kinds.sort(key=["positional", "usual", "keyword"].index)
    parameters: list[_Parameter] = []
    has_default = False
    for name, its_kind in zip(names, kinds, strict=True):
        has_default = random.random() < 0.4 or (has_default and its_kind != "keyword")
        alias = ALIASES[name] if name in ALIASES and random.random() < 0.7 else name
        parameters.append(_Parameter(name, alias, its_kind, has_default))
    takes_more = random.random() < 0.4
    generated = _compiled(kind, parameters, takes_more)
    bound: dict[str, Any] = {}
    if random.random() < 0.5:
        generated, bound = _partial(random, generated, parameters)
    left = [each for each in parameters if each.name not in bound]
    return GeneratedCallable(
        generated,
        {each.alias: each.name for each in left},
        bound,
        {each.name: -1 for each in left if each.has_default},
        takes_more,
    )


def _partial(
    random: Random, function: Callable[..., Any], parameters: list[_Parameter]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    first = [each for each in parameters if each.kind != "keyword"]
    first = first[: random.randint(0, len(first))]
    later = [each for each in parameters if each.kind != "positional" and each not in first and random.random() < 0.4]
    args = {each.name: 100 + index for index, each in enumerate(first)}
    kwargs = {each.name: 200 + index for index, each in enumerate(later)}
    return functools.partial(functools.partial(function, *args.values()), **kwargs), args | kwargs


def _compiled(kind: str, parameters: list[_Parameter], takes_more: bool) -> Callable[..., Any]:
    in_class = {"method": "self", "object": "self", "classmethod": "cls"}.get(kind)
    parts = [in_class] if in_class else []
    for index, each in enumerate(parameters):
        if each.kind == "keyword" and (index == 0 or parameters[index - 1].kind != "keyword"):
            parts.append("*")
        parts.append(each.source())
        if each.kind == "positional" and (index + 1 == len(parameters) or parameters[index + 1].kind != "positional"):
            parts.append("/")
    parts += ["**more: int"] if takes_more else []
    returned = ", ".join(f"{each.name!r}: {each.name}" for each in parameters)
    body = f"({', '.join(parts)}) -> dict:\n{{0}}    return {{{{{returned}{', ' if returned else ''}'**': {'more' if takes_more else '{{}}'}}}}}\n"
    if kind in ("function", "async", "decorated"):
        lines = f"{'async ' if kind == 'async' else ''}def run{body.format('')}"
        lines = ("@wrapped\n" if kind == "decorated" else "") + lines + "made = run\n"
    else:
        name = "__call__" if kind == "object" else "run"
        decorator = f"    @{kind}\n" if kind in ("classmethod", "staticmethod") else ""
        lines = f"class Run:\n{decorator}    def {name}{body.format('    ')}"
        lines += "made = Run()" if kind == "object" else "made = Run().run"
    namespace: dict[str, Any] = {"wrapped": _wrapped}
    source = f"from typing import Annotated\nfrom pydantic import Field\n{lines}\n"
    linecache.cache["<generated>"] = (len(source), None, source.splitlines(keepends=True), "<generated>")
    exec(compile(source, "<generated>", "exec"), namespace)
    made: Callable[..., Any] = namespace["made"]
    return made


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner
