"""Tools of callables of all kinds: what fits the schema can be called, and each value goes to its parameter."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from mulligan import Agent, Call, DeclarationError, Say, ToolContext, tool
from mulligan.activities.answers.prepare_call import valid
from mulligan.activities.registry import Registry
from mulligan.activities.tool_running.isolated import ChildProcesses
from mulligan.testing import ScriptedModel, run_agent
from mulligan.tool import isolated_call
from mulligan.worker.declaration_warnings import declaration_warnings
from tests.support import callables
from tests.support.examples import examples
from tests.support.generated_callables import GeneratedCallable, random_callable

NAMES = [
    "mulligan-parameter-0",
    "mulligan-parameter-1",
    "from",
    "from_",
    "self",
    "cls",
    "first",
    "p0",
    "p1",
    "a",
    "b",
    "more",
    "kwargs",
    "x",
    "model_config",
    "schema",
]


def random_arguments(random: Random, of: GeneratedCallable) -> dict[str, Any]:
    given = {alias: index for index, alias in enumerate(of.names) if random.random() < 0.9}
    return given | {name: 300 + index for index, name in enumerate(NAMES) if random.random() < 0.05}


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(st.integers(0, 10**9))
def test_what_fits_the_schema_can_be_called_and_gets_its_values(seed: int) -> None:
    """Under the right parameters. A further argument that a parameter of the function would take is refused."""
    random = Random(seed)
    generated = random_callable(random)
    declared = tool(name="t")(generated.call)
    assert declared.schema["properties"].keys() == generated.names.keys()
    for _ in range(5):
        arguments = random_arguments(random, generated)
        prepared = valid(declared.arguments, arguments)
        if isinstance(prepared, Exception):
            refused = {name for name in arguments if name not in generated.names}
            missing = {alias for alias, name in generated.names.items() if name not in generated.defaults}
            assert refused or not missing <= arguments.keys()
            assert refused or not Draft202012Validator(declared.schema).is_valid(arguments)
            continue
        assert Draft202012Validator(declared.schema).is_valid(arguments)
        args, kwargs = declared.arguments.bind(declared.arguments.validate(prepared), None)
        received: Any = declared.function(*args, **kwargs)
        received = asyncio.run(received) if inspect.iscoroutine(received) else received
        given = {generated.names[name]: value for name, value in arguments.items() if name in generated.names}
        more = {name: value for name, value in arguments.items() if name not in generated.names}
        assert received == generated.defaults | generated.bound | given | {"**": more}
        assert not more or generated.takes_more


def greet(name: str, greeting: str = "Hello", *, mark: Annotated[str, Field(alias="class")] = ".") -> str:
    """Greet somebody.

    Args:
        name: Whom.
        greeting: How.
    """
    return f"{greeting}, {name}{mark}"


class Greeter:
    """Greet in a way of one's own."""

    def __init__(self, greeting: str = "Hi") -> None:
        self.greeting = greeting

    def __call__(self, name: str) -> str:
        return greet(name, self.greeting)

    def greet(self, name: str) -> str:
        """Greet politely."""
        return greet(name, self.greeting)


@pytest.mark.parametrize(
    ("callable_", "name", "description", "fields"),
    [
        (functools.partial(greet, greeting="Good day"), "greet", "Greet somebody.", ["name", "class"]),
        (functools.partial(greet, "Ann"), "greet", "Greet somebody.", ["greeting", "class"]),
        (Greeter(), "Greeter", "Greet in a way of one's own.", ["name"]),
        (functools.partial(Greeter(), name="Ann"), "Greeter", "Greet in a way of one's own.", []),
        (Greeter().greet, "greet", "Greet politely.", ["name"]),
        (functools.lru_cache(greet), "greet", "Greet somebody.", ["name", "greeting", "class"]),
        (staticmethod(greet), "greet", "Greet somebody.", ["name", "greeting", "class"]),
        (tool(name="other")(greet), "greet", "Greet somebody.", ["name", "greeting", "class"]),
    ],
)
def test_name_description_and_schema_are_those_of_the_function(
    callable_: Callable[..., Any], name: str, description: str, fields: list[str]
) -> None:
    """Bound arguments are not in the schema, and the worker has nothing to warn about."""
    declared = tool(callable_)
    assert (declared.name, declared.description, list(declared.schema["properties"])) == (name, description, fields)
    assert declared.source == __file__
    assert not declaration_warnings(Registry([Agent(name="a", model="openai:m", tools=[declared])]))


async def test_callables_run_as_tools() -> None:
    """With a context that is no part of the schema, and with further arguments."""

    class Counter:
        """Count."""

        async def __call__(self, ctx: ToolContext, first: int, **others: int) -> str:
            return f"{ctx.call_id}: {first} {others}"

    counting, greeting = tool(Counter()), tool(functools.partial(greet, greeting="Good day"))
    model = ScriptedModel(
        Say(calls=[Call("Counter", {"first": "1", "second": "2"}), Call("greet", {"name": "Ann", "greeting": "x"})]),
        Say(calls=[Call("greet", {"name": "Ann"}), Call("Counter", {"first": 1, "ctx": 2, "self": 3})]),
        Say("done"),
    )
    run = await run_agent(Agent(name="a", model="openai:m", tools=[counting, greeting]), "Go.", model=model)
    texts = [call.result.text for call in run.calls if call.result]
    assert counting.schema["additionalProperties"] == {"type": "integer"}
    assert texts[0].endswith(": 1 {'second': 2}")
    assert "- `greeting`: is not a field of it" in texts[1]
    assert texts[2] == "Good day, Ann."
    assert "- `self` is not a field of it" in texts[3]


def with_more(a: int, b: int = 7, **more: int) -> dict[str, int]:
    """Take more."""
    return {"a": a, "b": b, **more}


def test_a_further_argument_is_no_parameter_and_no_bound_argument() -> None:
    """Its name may be that of a field of the model, or may have been bound to the function."""
    declared, bound = tool(with_more), tool(functools.partial(with_more, via=5))
    assert valid(declared.arguments, {"a": 1, "p1": 3}) == {"a": 1, "p1": 3}
    values = declared.arguments.validate({"a": 1, "p1": 3})
    assert declared.arguments.bind(values, None) == ([], {"a": 1, "p1": 3})
    assert isinstance(valid(declared.arguments, {"a": 1, "mulligan-parameter-1": 3}), Exception)
    assert isinstance(valid(bound.arguments, {"a": 1, "via": 9}), Exception)


def test_a_parameter_that_is_hidden_from_the_model_has_its_default() -> None:
    def find(text: str, hidden: SkipJsonSchema[int] = 5) -> str:
        """Find a text."""
        return f"{text} {hidden}"

    declared = tool(find)
    assert list(declared.schema["properties"]) == ["text"]
    assert valid(declared.arguments, {"text": "a"}) == {"text": "a"}


def two_of_a_name(a: int, b: Annotated[int, Field(alias="a")]) -> None:
    """Two parameters that the model cannot tell apart."""


class OfClass:
    @classmethod
    def of_class(cls, x: int) -> int:
        return x

    def unbound(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("callable_", "says"),
    [
        (lambda *numbers: 1, "parameter '*numbers' has no schema; name each parameter."),
        (two_of_a_name, "two parameters have the same name for the model; give one another alias."),
        (OfClass.__dict__["of_class"], "use a `classmethod` as a method of its class"),
        (OfClass.unbound, "parameter 'self' has no value: a method is declared by `tool(object.method)`"),
        (functools.partial(lambda x: x), "parameter 'x' has no type"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_its_declaration(callable_: Any, says: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        tool(name="t")(callable_)
    assert says in str(raised.value)


@pytest.fixture(scope="module")
async def children() -> AsyncIterator[ChildProcesses]:
    children = ChildProcesses(most=2)
    yield children
    await children.close()


@pytest.mark.parametrize("name", callables.ISOLATED)
async def test_callables_that_another_process_can_find_run_isolated(children: ChildProcesses, name: str) -> None:
    """With what is bound to them, and under the right parameters."""
    declared = callables.ISOLATED[name]
    prepared = valid(declared.arguments, {"from": "1", "to": 2})
    assert not isinstance(prepared, Exception)
    arguments = declared.arguments.validate(prepared)
    args, kwargs = declared.arguments.bind(arguments, None)
    reference, bound_args, bound_kwargs = isolated_call(declared.function)
    assert reference is not None
    result = await children.run(reference, [*bound_args, *args], {**bound_kwargs, **kwargs}, limit=60)
    expected = declared.function(*args, **kwargs)
    assert result == (await expected if inspect.isawaitable(expected) else expected)


def local() -> Callable[..., Any]:
    def inner(x: int) -> int:
        return x

    return inner


class Local:
    def method(self, x: int) -> int:
        return x


def of_main() -> Any:
    """An object that can be pickled here, of a class that another process does not have."""
    kind = type("OfMain", (), {"__module__": "__main__"})
    setattr(sys.modules["__main__"], "OfMain", kind)  # noqa: B010 - a type checker sees no such attribute
    return kind()


def replaced() -> Any:
    changed = Local()
    changed.method = functools.partial(greet).func.__get__(changed)  # type: ignore[method-assign]
    return changed.method


@pytest.mark.parametrize(
    "callable_",
    [
        functools.partial(local(), 1),
        functools.partial(callables.travel, to=threading.Lock()),  # type: ignore[arg-type]
        type("Inner", (Local,), {"__qualname__": "f.<locals>.Inner"})().method,
        callables.logged(callables.travel),
        callables.logged(callables.decorated),
        functools.partial(callables.travel, to=of_main()),
        replaced(),
    ],
)
def test_callables_that_another_process_cannot_find_are_no_isolated_tools(callable_: Any) -> None:
    """Also one that is found, but is not the same there."""
    with pytest.raises(DeclarationError, match="an isolated tool"):
        tool(name="t", isolated=True)(callable_)
