"""Hundreds of generated calls and answers through the real workflow and the real activities, with agents of every kind.

Whatever a model says: the run ends, each call has one result, each failure is told, counted and on one ERROR span, what
completes validates, and what goes back to a provider is legal.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import (
    Agent,
    Call,
    CallsInText,
    InvalidToolInput,
    ProviderStrategy,
    Say,
    Tool,
    ToolCall,
    ToolContext,
    ToolStrategy,
    output_of,
    tool,
)
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from tests.support.examples import examples
from tests.support.random_calls import (
    IDS,
    KEYS,
    NAMES,
    TEXTS,
    arguments,
    value,
)

SEEDS = range(examples(12))
RUNS, STEPS, CALLS = 5, 5, 8
"""Runs for each seed, steps of each run, and the maximum of calls in a step: some 800 calls in all."""
OFFERED = ["pick", "note", "boom", "Plan", "Choice", "list", "output"]
SEEN: dict[int, int] = {}
"""The number of checked calls, by seed."""
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Plan(BaseModel):
    steps: list[str]
    size: int = 1


class Choice(BaseModel):
    key: str


@tool
async def pick(selector: str, limit: int = 1) -> str:
    """Pick."""
    return f"{selector} {limit}"


@tool
def note(what: dict[str, Any] | list[Any] | None, ctx: ToolContext) -> Any:
    """Note anything, and give it back."""
    return what


@tool(handle_errors="It broke.")
async def boom() -> None:
    """Break."""
    raise RuntimeError("\ud800 broken")


def rubbish(invalid: InvalidToolInput) -> object:
    """A fixer with random results: it raises, returns garbage, or returns valid arguments."""
    dice = random.Random(invalid.raw_arguments)
    if dice.random() < 0.3:
        raise KeyError("fixer")
    return dice.choice([object(), "{", {"selector": 5}, float("nan"), None, {"selector": "fixed"}, {"steps": ["a"]}])


def no_hashes(call: ToolCall, ctx: ToolContext) -> str | None:
    if "#b" in call.arguments:
        raise LookupError("guard")
    return "no empty ones" if '""' in call.arguments else None


def texts(error: Any) -> str:
    return f"{error.kind}: {error.text[:20]}"


TOOLS: list[Tool] = [pick, note, boom]
SCHEMA = {"title": "Plan", "type": "object", "properties": {"steps": {"type": "array"}}, "required": ["steps"]}
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, None),
    "guarded": ({"guard": no_hashes, "repair": rubbish}, None),
    "told by a function": ({"handle_errors": texts}, None),
    "in text": ({"features": [CallsInText()]}, None),
    "a call of a union": ({"output": ToolStrategy(Plan | Choice), "repair": rubbish}, Plan | Choice),
    "written": ({"output": ProviderStrategy(Plan)}, Plan),
    "written, of a union": ({"output": ProviderStrategy(Plan | Choice), "features": [CallsInText()]}, Plan | Choice),
    "a JSON schema": ({"output": SCHEMA, "guard": no_hashes}, SCHEMA),
    "a list": ({"output": list[int]}, list[int]),
}


def say(dice: random.Random) -> Say:
    """A random answer: text, calls and finish reason."""
    raw = arguments(dice)
    text = dice.choice(["", "so", raw, f"```json\n{raw}\n```", '{"steps": ["a"]}', '{"value": {"key": "k"}}'])
    if dice.random() < 0.2:
        text = json.dumps({"name": dice.choice(OFFERED), "arguments": value(dice)})
    calls = [
        Call(dice.choice([*OFFERED, *OFFERED, *NAMES]), _arguments(dice), dice.choice(IDS))
        for _ in range(dice.choice([0, 1, 1, 2, 3, CALLS]))
    ]
    finish = dice.choice([None, None, None, "length", "content_filter"]) if calls else None
    return Say(text, calls, finish_reason=finish)


def _arguments(dice: random.Random) -> str:
    fitting = [
        {"selector": dice.choice(TEXTS)},
        {"what": value(dice)},
        {"steps": ["a"]},
        {"key": "k"},
        {"value": [1]},
        {},
    ]
    if dice.random() < 0.5:
        return json.dumps(dice.choice(fitting))
    return dice.choice(
        [arguments(dice), json.dumps({dice.choice(KEYS): value(dice)}), "x" * 100_000, "[" * 300, "1e999"]
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_runs_with_random_answers_complete_and_count_each_failure(seed: int) -> None:
    dice = random.Random(seed)
    SEEN[seed] = 0
    for _ in range(RUNS):
        kind = dice.choice(list(KINDS))
        options, schema = KINDS[kind]
        agent = Agent(name="agent", model="scripted:test", tools=TOOLS, max_steps=STEPS, **options)
        run = await run_agent(agent, "Go.", model=ScriptedModel(*(say(dice) for _ in range(STEPS)), is_strict=False))
        check(run, schema)
        SEEN[seed] += len(run.calls)


def test_the_seeds_produced_enough_random_answers() -> None:
    if len(SEEN) < len(SEEDS):
        pytest.skip("not all seeds were run")
    assert sum(SEEN.values()) >= 50 * len(SEEDS)


def check(run: AgentRun, schema: Any) -> None:
    assert run.result is not None, run.error
    assert run.result.status in ("completed", "max_steps", "truncated", "refused")
    if schema is not None and run.result.status == "completed":
        output_of(run.result, schema)
    assert all(call.result is not None for call in run.calls)
    ids = [call.id for call in run.calls]
    assert len(set(ids)) == len(ids)
    told = [call.result.error for call in run.calls if call.result and call.result.error]
    told += [step.error for step in run.steps if step.error]
    recovered = [span for span in run.spans if span.attributes.get("mulligan.recovered")]
    assert run.result.recovered_failures == len(told) == len(recovered)
    assert all(span.status == "ERROR" and span.name == "ai.toolCall" for span in recovered)
    for call in run.calls:
        assert call.arguments is None or isinstance(call.arguments, dict)
        assert call.result is not None
        assert "Traceback" not in call.result.text
        call.result.text.encode()
    for message in run.messages:
        for written in (*OpenAIChat().encode(message), *OpenAIResponses().encode(message)):
            written.encode()
            item = json.loads(written, parse_constant=pytest.fail)
            for asked in item.get("tool_calls", [item] if item.get("type") == "function_call" else []):
                function = asked.get("function", asked)
                assert LEGAL.fullmatch(function["name"])
                assert isinstance(json.loads(function["arguments"]), dict)
                assert LEGAL.fullmatch(asked.get("id") or asked["call_id"])
