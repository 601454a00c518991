"""The cost of a run, counted by the prices pinned at its start, on a server. What it is: tests/unit/test_costs.py."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Compaction, connect, tool
from mulligan.client.read_run import read_steps
from mulligan.devserver import DevServer
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.compaction_agents import LIMIT, PROMPT, read_page, reading
from tests.support.lab import Lab, Ran
from tests.support.openai_turn import Turn, Usage

Priced = Callable[..., tuple[str, ...]]
MAIN = {"input": 2.0, "cached_input": 0.2, "cache_write": 2.5, "output": 10.0}
OTHER = {"input": 0.5, "output": 1.0}


@tool
def weigh(thing: str) -> str:
    """Weigh something."""
    return f"{thing}: 2 kg"


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


async def run(lab: Lab, model: str | list[str], *, given: dict[str, Any] | None = None, **options: Any) -> Ran:
    agent = Agent(name="weigher", model=model, **{"tools": [weigh], "model_attempts": 1, **options})
    queue = f"costs-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([agent], []), lab.telemetry, queue):
        start = {"agent": agent.name, "prompt": "Weigh it.", **(given or {})}
        handle = await lab.client.start_workflow("AgentWorkflow", start, id=queue, task_queue=queue)
        ran = await lab.look(handle)
        assert (await handle.query("progress")).get("cost") == ran.result.get("cost")
        return ran


def weighs(usage: Usage = Usage(), times: int = 9) -> list[Turn]:  # noqa: B008 - it is frozen
    return [Turn(calls=[("weigh", '{"thing": "ham"}')], usage=usage)] * times


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_cost_counts_cached_and_cache_write_tokens_by_their_own_prices(
    lab: Lab, priced: Priced, api: str
) -> None:
    """A dated version of a model has the price of the model."""
    [name] = priced(MAIN)
    dated = f"{name}-2026-11-02"
    usage = Usage(input_tokens=10_000, cached_input_tokens=6_000, cache_write_tokens=1_000, output_tokens=700)
    lab.model.script(dated, [*weighs(usage, 1), Turn(text="done", usage=Usage(input_tokens=100, output_tokens=1))])
    ran = await run(lab, f"{api}:{dated}")
    assert ran.result["status"] == "completed"
    # (3,000 at 2 + 6,000 at 0.2 + 1,000 at 2.5 + 700 at 10) and (100 at 2 + 1 at 10), for a million.
    assert ran.result["cost"] == 0.01691
    [finish] = ran.spans_of("agent.finish")
    assert finish.attributes["mulligan.cost"] == 0.01691
    assert ran.result["usage"]["cache_write_tokens"] == 1_000
    # The prices are in history once, whatever the number of steps.
    history = await ran.handle.fetch_history()
    assert [b'"prices"' in event.SerializeToString() for event in history.events].count(True) == 1


async def test_cost_includes_summaries_and_is_kept_over_continue_as_new(
    lab: Lab, chain_server: DevServer, priced: Priced
) -> None:
    """The run is compacted by another model and continues as new; its cost is the sum of all model calls."""
    main, sums_up = priced(MAIN, OTHER)
    model = f"openai-chat:{main}"
    lab.model.script(main, reading(11))
    lab.model.script(sums_up, reading(11))
    options: dict[str, Any] = {"features": [Compaction(at=LIMIT, model=f"openai:{sums_up}")], "max_steps": 40}
    agent = Agent(name="page_reader", model=model, tools=[read_page], **options)
    client = await connect(chain_server.address)
    async with running_worker(client, load_agents([agent], []), lab.telemetry, "costs"):
        given = {"agent": "page_reader", "prompt": PROMPT}
        handle = await client.start_workflow("AgentWorkflow", given, id=main, task_queue="costs")
        result = await handle.result()
        steps = await read_steps(client, handle)
        page = await client.get_workflow_handle(main).query("steps")
    assert result["status"] == "completed"
    assert "earlier" in page
    compacted = [step["compaction"]["usage"] for step in steps if "compaction" in step]
    assert compacted
    expected = sum(_usd(step["usage"], MAIN) for step in steps) + sum(_usd(usage, OTHER) for usage in compacted)
    assert result["cost"] == pytest.approx(expected, abs=1e-11)
    assert {step["model"] for step in steps} == {model}


def _usd(usage: dict[str, int], price: dict[str, float]) -> float:
    assert not usage["cached_input_tokens"]
    return (usage["input_tokens"] * price["input"] + usage["output_tokens"] * price["output"]) / 1e6
