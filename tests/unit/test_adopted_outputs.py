"""Which part of pydantic-ai reads an answer, and what the model is told of one that it refuses.

Mulligan does not depend on pydantic-ai: here are stand-ins for what this decision uses of it. That the real one has these names,
and what its processors do, is tried in an environment that has it (tests/system/test_adopt.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter


class ModelRetry(Exception):
    pass


class ToolRetryError(Exception):
    def __init__(self, content: str) -> None:
        self.tool_retry = SimpleNamespace(content=content)


class RetryPromptPart:
    def __init__(self, content: Any, tool_name: str) -> None:
        self.content = content

    def model_response(self) -> str:
        return f"{[each['msg'] for each in self.content]} Try again."


class Named(BaseModel):
    """In place of what is named only."""


STAND_INS: dict[str, dict[str, Any]] = {
    "": {"Agent": dict, "ModelRetry": ModelRetry, "RunContext": dict},
    ".exceptions": {"ToolRetryError": ToolRetryError},
    ".messages": {"InstructionPart": Named, "RetryPromptPart": RetryPromptPart},
    ".profiles": {},
    ".profiles.openai": {"OpenAIJsonSchemaTransformer": Named},
    ".tools": {"ToolDefinition": Named},
}


@pytest.fixture
def privates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with stand-ins. None of it is left for other tests."""
    for name, has in STAND_INS.items():
        module = ModuleType(f"pydantic_ai{name}")
        vars(module).update(has)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    name = "mulligan.adopt.pydantic_ai_privates"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module(name)
    del sys.modules[name]


class Processor:
    """Reads an answer as (its own name, what it was given). `fails`: what it raises."""

    def __init__(self, name: str, fails: Exception | None = None) -> None:
        self._name, self._fails = name, fails

    def hook_validate(self, data: Any, run_context: Any) -> tuple[Any, None]:
        if self._fails is not None:
            raise self._fails
        return (self._name, data), None

    async def hook_execute(self, value: Any, state: Any, **_: Any) -> Any:
        return value


def outputs(privates: Any, mode: str, fails: Exception | None = None) -> Any:
    schema = SimpleNamespace(
        mode=mode,
        toolset=SimpleNamespace(processors={"Fruit": Processor("of Fruit", fails)}),
        processor=Processor("of the one type"),
        text_processor=Processor("of texts"),
    )
    return privates.Outputs(SimpleNamespace(_output_schema=schema, _output_validators=()))


FRUIT = {"name": "kiwi"}


@pytest.mark.parametrize(
    ("mode", "name", "answer", "read"),
    [
        ("tool", "Fruit", FRUIT, ("of Fruit", '{"name": "kiwi"}')),
        ("auto", "Fruit", FRUIT, ("of Fruit", '{"name": "kiwi"}')),
        ("tool", None, "kiwi", ("of texts", "kiwi")),
        ("tool", "Tree", "kiwi", ("of texts", "kiwi")),
        ("native", "Fruit", FRUIT, ("of the one type", '{"name": "kiwi"}')),
        ("native", None, FRUIT, ("of the one type", '{"name": "kiwi"}')),
        ("prompted", "Fruit", FRUIT, ("of the one type", '{"name": "kiwi"}')),
        ("text", None, "kiwi", ("of texts", "kiwi")),
        ("text", "Fruit", "kiwi", ("of texts", "kiwi")),
    ],
)
async def test_an_answer_is_read_by_the_part_that_its_mode_and_its_name_say(
    mode: str, name: str | None, answer: Any, read: tuple[str, str], privates: Any
) -> None:
    """An output tool's by its name; the only type's whatever it is called; anything else is a text, and stays one."""
    assert await outputs(privates, mode).read(name, answer, None) == read


def invalid() -> Exception:
    try:
        TypeAdapter(int).validate_python("many")
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("fails", "told"), [(ToolRetryError("Too sweet."), "Too sweet."), (invalid(), "valid integer.* Try again.")]
)
async def test_an_answer_that_is_refused_is_to_be_given_again(fails: Exception, told: str, privates: Any) -> None:
    with pytest.raises(ModelRetry, match=told):
        await outputs(privates, "tool", fails).read("Fruit", FRUIT, None)
