"""Functions of instructions that fail, or return no text: the run fails at once, with a sentence on the function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mulligan import Agent, InvalidRunInputError, RunInput, Say
from mulligan.activities import pin_facts
from mulligan.testing import ScriptedModel, run_agent


def forgets(run: RunInput) -> Any:
    f"You serve {run.prompt}."  # noqa: B021 - its `return` is missing


def counts(run: RunInput) -> Any:
    return len(str(run.prompt))


def raises(run: RunInput) -> str:
    return f"You serve {run.metadata['name']}."


def exits(run: RunInput) -> str:
    raise SystemExit(3)


async def asks_nobody(run: RunInput) -> Any:
    await asyncio.sleep(0)


async def hangs(run: RunInput) -> str:
    await asyncio.sleep(60)
    return "late"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (forgets, "returned None; it must return a text."),
        (asks_nobody, "returned None; it must return a text."),
        (counts, "returned a value of type int; it must return a text."),
        (raises, "raised KeyError: 'name'"),
        (exits, "raised RuntimeError: SystemExit: 3"),
        (hangs, "took more than 0.1 s."),
    ],
)
async def test_the_run_fails_at_once_with_agent_function_and_reason(
    function: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pin_facts, "INSTRUCTIONS_LIMIT", 0.1)
    model = ScriptedModel()
    run = await run_agent(Agent(name="clerk", model="scripted:m", instructions=function), "Hello", model=model)
    sentence = f'"agent" is "clerk": the function of its instructions, `{function.__name__}`, {why}'
    assert isinstance(run.error, InvalidRunInputError)
    assert run.error.message == sentence


async def test_a_text_of_a_class_of_its_own_is_a_text() -> None:
    class Text(str):
        __slots__ = ()

    model = ScriptedModel(Say("ok"))
    result = await run_agent(
        Agent(name="clerk", model="scripted:m", instructions=lambda run: Text("Be kind.")), "Hello", model=model
    )
    assert result.output == "ok"
