"""The cost of a run: counted by the prices pinned at its start, for every model that it asks; and limits of cost."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Compaction, InvalidRunInputError, ask_model, tool
from mulligan.worker.loading import load_agents
from tests.support.lab import DONE, Ran, call
from tests.support.memory_lab import memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn, Usage

Priced = Callable[..., tuple[str, ...]]

MAIN = {"input": 2.0, "cached_input": 0.2, "cache_write": 2.5, "output": 10.0}

OTHER = {"input": 0.5, "output": 1.0}


@tool
def weigh(thing: str) -> str:
    """Weigh something."""
    return f"{thing}: 2 kg"


@pytest.fixture(name="server")
def model_server(model: OpenAIServer) -> OpenAIServer:
    return model


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Priced:
    """Names of models that no other test uses, each with the given price or without one."""

    def names(*prices: dict[str, Any] | None) -> tuple[str, ...]:
        models = [f"priced-{uuid.uuid4().hex[:8]}" for _ in prices]
        table = {name: price for name, price in zip(models, prices, strict=True) if price is not None}
        (tmp_path / "prices.json").write_text(json.dumps({"models": table}))
        monkeypatch.setenv("MULLIGAN_PRICES", str(tmp_path / "prices.json"))
        return tuple(models)

    return names


async def run(
    server: OpenAIServer, model: str | list[str], *, given: dict[str, Any] | None = None, **options: Any
) -> Ran:
    agent = Agent(name="weigher", model=model, **{"tools": [weigh], "model_attempts": 1, **options})
    async with memory_lab(server, load_agents([agent], [])) as lab:
        ran = await lab.run_input({"agent": agent.name, "prompt": "Weigh it.", **(given or {})})
        assert (await ran.handle.query("progress")).get("cost") == ran.result.get("cost")
        return ran


def weighs(usage: Usage = Usage(), times: int = 9) -> list[Turn]:  # noqa: B008 - it is frozen
    return [Turn(calls=[("weigh", '{"thing": "ham"}')], usage=usage)] * times


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_cost_counts_cached_and_cache_write_tokens_by_their_own_prices(
    server: OpenAIServer, priced: Priced, api: str
) -> None:
    """A dated version of a model has the price of the model."""
    [name] = priced(MAIN)
    dated = f"{name}-2026-11-02"
    usage = Usage(input_tokens=10_000, cached_input_tokens=6_000, cache_write_tokens=1_000, output_tokens=700)
    server.script(dated, [*weighs(usage, 1), Turn(text="done", usage=Usage(input_tokens=100, output_tokens=1))])
    ran = await run(server, f"{api}:{dated}")
    assert ran.result["status"] == "completed"
    # (3,000 at 2 + 6,000 at 0.2 + 1,000 at 2.5 + 700 at 10) and (100 at 2 + 1 at 10), for a million.
    assert ran.result["cost"] == 0.01691
    [finish] = ran.spans_of("agent.finish")
    assert finish.attributes["mulligan.cost"] == 0.01691
    assert ran.result["usage"]["cache_write_tokens"] == 1_000


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_is_priced_by_the_tier_that_its_answer_names(
    server: OpenAIServer, priced: Priced, api: str, stream: bool
) -> None:
    """The request asks for one tier, and the answers come from others: the cost, the steps and the usage say so."""
    [name] = priced({"input": 2.0, "output": 10.0, "tiers": {"priority": 2.0}})
    usage = Usage(input_tokens=1_000, output_tokens=100)
    first = Turn(calls=[("weigh", '{"thing": "ham"}')], usage=usage, tier="priority")
    server.script(name, [first, Turn(text="done", usage=usage)])
    settings = {"service_tier": "priority", **({} if stream else {"stream": False})}
    ran = await run(server, f"{api}:{name}", model_settings=settings, max_cost=1.0)
    assert [json.loads(each.body)["service_tier"] for each in server.requests_of(name)] == ["priority", "priority"]
    assert ran.result["cost"] == 0.009
    assert [step["usage"].get("tier") for step in ran.steps] == ["priority", None]
    assert "tier" not in ran.result["usage"]


async def test_an_answer_at_a_tier_without_a_price_makes_the_cost_unknown_and_counts_for_the_limit(
    server: OpenAIServer, priced: Priced
) -> None:
    [name] = priced({"input": 2.0, "output": 10.0})
    turns = [Turn(calls=[("weigh", '{"thing": "ham"}')], usage=Usage(1_000, 100), tier="scale")] * 9
    server.script(name, turns)
    ran = await run(server, f"openai:{name}", max_cost=0.005)
    assert (ran.result["status"], ran.result["steps"], ran.result.get("cost")) == ("max_cost", 2, None)


@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_a_sub_agent_at_a_tier_without_a_price_counts_for_the_limit(
    server: OpenAIServer, priced: Priced, ends: str
) -> None:
    main, name = priced(MAIN, {"input": 2.0, "output": 10.0})
    used = Turn(calls=[("weigh", '{"thing": "ham"}')], usage=Usage(1_000, 100), tier="scale")
    last = (
        Turn(text="2 kg", usage=Usage(1_000, 100), tier="scale")
        if ends == "completed"
        else Turn(failure=Failure(status=400))
    )
    server.script(name, [used, last])
    server.script(main, [call("scales", '{"prompt": "Weigh it."}')] * 3)
    scales = Agent(name="scales", model=f"openai:{name}", tools=[weigh], model_attempts=1)
    ran = await run(server, f"openai-chat:{main}", tools=[scales.as_tool(description="Weighs.")], max_cost=0.002)
    assert (ran.result["status"], ran.result["steps"], ran.result.get("cost")) == ("max_cost", 1, None)
    assert ran.result["counted"] >= 0.003


async def test_fallback_and_repairing_models_are_counted_by_their_own_prices(
    server: OpenAIServer, priced: Priced
) -> None:
    """The model that refuses costs nothing."""
    first, second, mender = priced({"input": 1000.0, "output": 1000.0}, MAIN, OTHER)
    server.script(first, [Turn(failure=Failure(status=400))])
    server.script(second, [call("weigh", '{"thong": "ham"}'), DONE])
    server.script(mender, [Turn(calls=[("weigh", '{"thing": "ham"}')], usage=Usage(1000, 100))])

    @tool(name="weigh", fix=ask_model(f"openai-chat:{mender}"))
    def mended(thing: str) -> str:
        return f"{thing}: 2 kg"

    ran = await run(server, [f"openai:{first}", f"openai-chat:{second}"], tools=[mended])
    assert [each["result"]["text"] for each in ran.calls] == ["ham: 2 kg"]
    assert ran.result["usage"]["input_tokens"] == 1020
    # Two calls of 10 at 2 and 5 at 10; 1,000 at 0.5 and 100 at 1.
    assert ran.result["cost"] == 0.00074


async def test_there_is_no_cost_once_a_model_of_unknown_price_was_asked(server: OpenAIServer, priced: Priced) -> None:
    """A sum without the calls of that model would be wrong."""
    first, second = priced(MAIN, None)
    server.script(first, lambda body, nth: Turn(failure=Failure(status=400)) if nth else weighs()[0])
    server.script(second, [DONE, DONE])
    ran = await run(server, [f"openai:{first}", f"openai-chat:{second}"])
    assert ran.result["status"] == "completed"
    assert "cost" not in ran.result
    [finish] = ran.spans_of("agent.finish")
    assert "mulligan.cost" not in finish.attributes


@pytest.mark.parametrize(
    ("options", "given", "status", "steps"),
    [
        ({"max_cost": 0.0003}, {}, "max_cost", 5),
        ({"max_cost": 0.0003}, {"maxCost": 0.00007}, "max_cost", 1),
        ({}, {"max_cost": 0.00014}, "max_cost", 2),
        ({"max_cost": 0.0003}, {"max_cost": 1}, "max_steps", 7),
        ({"max_total_tokens": 100}, {"maxTotalTokens": 31}, "max_tokens", 3),
        ({}, {"max_total_tokens": 30}, "max_tokens", 2),
    ],
)  # fmt: skip
async def test_a_run_ends_when_it_reaches_its_cost_or_token_limit(
    server: OpenAIServer, priced: Priced, options: dict[str, Any], given: dict[str, Any], status: str, steps: int
) -> None:
    """The step (here 0.00007 USD and 15 tokens) is completed first. A limit in the run's input has precedence."""
    [name] = priced(MAIN)
    server.script(name, weighs())
    ran = await run(server, f"openai-chat:{name}", max_steps=7, given=given, **options)
    assert (ran.result["status"], ran.result["steps"]) == (status, steps)
    assert [each["result"]["text"] for each in ran.calls] == ["ham: 2 kg"] * steps
    assert ran.result["cost"] == pytest.approx(0.00007 * steps, abs=1e-12)
    [finish] = ran.spans_of("agent.finish")
    assert (finish.status, finish.attributes["mulligan.status"]) == ("UNSET", status)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"max_cost": 1}, {}),
        ({}, {"max_cost": 1}),
        ({"max_cost": 1, "sums_up": "unknown"}, {"model": "scripted:echo"}),
    ],
    ids=["the agent's limit", "the run's limit", "who sums up"],
)
async def test_a_cost_limit_is_refused_when_the_price_of_a_model_is_unknown(
    server: OpenAIServer, priced: Priced, options: dict[str, Any], given: dict[str, Any]
) -> None:
    """The run fails when it opens. The error names the model and where its price can be set."""
    known, unknown = priced(MAIN, None)
    if options.pop("sums_up", None):
        options["features"] = [Compaction(at=5000, model=f"openai:{unknown}")]
    ran = await run(server, [f"openai:{known}", f"openai:{unknown}"], given=given, **options)
    assert isinstance(ran.error, InvalidRunInputError)
    assert f"the price of openai:{unknown} is not known" in ran.error.message
    assert "MULLIGAN_PRICES" in ran.error.message
    assert server.requests_of(known) == []


async def test_scripts_cost_nothing(server: OpenAIServer) -> None:
    ran = await run(server, "scripted:echo", max_cost=0.01)
    assert (ran.result["status"], ran.result["cost"]) == ("completed", 0.0)
