"""Prices of models, price files of users, and the model facts that are pinned for a run."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from mulligan import Agent, ToolStrategy
from mulligan.activities.models.resolve_models import FALLBACK_PATIENCE, PATIENCE, model_patience, resolve_models
from mulligan.cli._steps import cost_of
from mulligan.errors import DeclarationError, InvalidRunInputError
from mulligan.observe.metrics import Metrics
from mulligan.prices import Price, Prices, counted_cost
from mulligan.prices import cost_of as costs
from mulligan.run_input import RunInput
from mulligan.values import RunResult, Usage
from mulligan.wire.agent_facts import ModelFacts
from mulligan.wire.model_call import ModelAnswer
from mulligan.workflows.turn import Turn

TABLE = Prices(
    {
        "big": Price(input=2.0, output=10.0),
        "big-2026-11-02": Price(input=3.0, output=10.0),
        "big-mini": Price(input=1.0, output=5.0),
        "openai-chat:big": Price(input=0.0, output=0.0),
    }
)
SHIPPED = Prices.load()


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("openai:big", 2.0),
        ("openai:big-2026-10-01", 2.0),
        ("openai:big-20261001", 2.0),
        ("openai:big-0613", 2.0),
        ("openai:big-latest", 2.0),
        ("openai:big-2026-11-02", 3.0),
        ("openai:big-mini-2026-11-02", 1.0),
        ("openai:big-pro", None),
        ("openai:big-1", None),
        ("openai:bigger", None),
        ("openai:ft:big:us:x", None),
        ("openai-chat:big", 0.0),
        ("openai-chat:big-2026-11-02", 0.0),
        ("openai-chat:big-mini", 1.0),
        ("scripted:big", 0.0),
    ],
)
def test_a_dated_version_has_the_price_of_its_model_and_other_names_have_none(model: str, price: float | None) -> None:
    """Not even if they begin like the name of a known model."""
    found = TABLE.of(model)
    assert (found.input if found else None) == price


def test_the_cost_of_tokens_by_their_kinds() -> None:
    price = Price(input=2.0, cached_input=0.2, cache_write=2.5, output=10.0)
    usage = Usage(input_tokens=1_000, cached_input_tokens=600, cache_write_tokens=100, output_tokens=10)
    assert price.of(usage) == (300 * 2 + 600 * 0.2 + 100 * 2.5 + 10 * 10) / 1e6
    plain = Price(input=2.0, output=10.0)
    assert plain.of(usage) == (1_000 * 2 + 10 * 10) / 1e6
    # Wrong counts of a server do not make a cost negative.
    assert price.of(Usage(input_tokens=10, cached_input_tokens=99, cache_write_tokens=99)) == 10 * 0.2 / 1e6
    assert price.of(Usage()) == 0


def test_each_tier_has_its_price_and_an_unknown_one_has_none() -> None:
    """A limit counts an unknown tier at the standard price."""
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    price = Price(input=2.0, output=8.0, tiers={"flex": 0.5, "priority": 2.5})
    at = {tier: usage.model_copy(update={"tier": tier}) for tier in ("", "flex", "priority", "batch", "scale")}
    assert [price.of(each) for each in at.values()] == [10.0, 5.0, 25.0, 5.0, None]
    prices = {"openai:a": price, "openai:b": price}
    assert costs(prices, "openai:a", at["scale"]) is None
    assert counted_cost(prices, "openai:a", at["scale"]) == 10.0
    # The part of a repair has a tier of unknown price, or its model has none.
    with_repair = at[""] + at["scale"]
    assert counted_cost(prices, "openai:a", with_repair, {"openai:b": at["scale"]}) == 20.0
    assert counted_cost(prices, "openai:a", with_repair, {"openai:unknown": at["scale"]}) == 10.0
    # The part that another model used has its own tier.
    both = at["flex"] + at["priority"]
    assert both.tier == "flex"
    assert costs(prices, "openai:a", both, {"openai:b": at["priority"]}) == 5.0 + 25.0
    assert (Usage() + at["flex"]).tier == ""
    # Each part counts by itself, whatever is unknown of the others.
    for main, repair, counted in (("flex", "scale", 5.0 + 10.0), ("scale", "flex", 10.0 + 5.0)):
        assert counted_cost(prices, "openai:a", at[main] + at[repair], {"openai:b": at[repair]}) == counted
    assert counted_cost(prices, "openai:a", both, {"openai:unpriced": at["priority"]}) == 5.0
    assert counted_cost(prices, "openai:unpriced", both, {"openai:b": at["priority"]}) == 25.0


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, False),
        ({"service_tier": "default"}, False),
        ({"service_tier": "flex"}, False),
        ({"service_tier": "fast"}, True),
        ({"openai": {"service_tier": "priority"}}, True),
        ({"anthropic": {"service_tier": "priority"}}, False),
    ],
)
def test_a_limited_run_is_refused_where_the_price_of_the_requested_tier_is_unknown(
    settings: dict[str, Any], is_refused: bool
) -> None:
    prices = Prices({"m": Price(input=1.0, output=1.0, tiers={"flex": 0.5})})
    agent = Agent(name="a", model="openai:m", max_cost=1.0, model_settings=settings)
    if not is_refused:
        assert resolve_models(agent, RunInput(agent="a"), prices).prices
        return
    with pytest.raises(InvalidRunInputError) as error:
        resolve_models(agent, RunInput(agent="a"), prices)
    assert "the price of openai:m at the tier 'priority' is not known" in str(error.value)
    assert '"tiers": {"priority": …}' in str(error.value)


def test_each_shipped_price_is_valid_and_the_table_has_source_and_date() -> None:
    """mulligan/prices.json."""
    table = json.loads((Path(__file__).parents[2] / "mulligan/prices.json").read_text())
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", table["date"])
    assert table["source"]
    for name in table["models"]:
        if ":" in name:  # a tool that a provider runs
            tool = SHIPPED.of(name)
            assert tool is not None
            assert (tool.calls or 0) > 0 == tool.input
            continue
        price = SHIPPED.of(f"openai:{name}")
        assert price is not None
        assert (
            0 < (price.cached_input or price.input) <= price.input <= (price.cache_write or price.input) < price.output
        )
        assert all(0 < part < 1 if tier == "flex" else part > 1 for tier, part in price.tiers.items())
    mini = Price(input=0.25, cached_input=0.025, output=2.0, tiers={"flex": 0.5, "priority": 1.8})
    assert SHIPPED.of("openai:gpt-5-mini-2025-08-07") == mini
    assert SHIPPED.of("openai-chat:llama3") is None


def test_a_price_file_overrides_and_extends_the_shipped_table(tmp_path: Path) -> None:
    """Other models keep their shipped prices."""
    file = tmp_path / "prices.json"
    file.write_text(
        json.dumps({"models": {"gpt-5-mini": {"input": 9, "output": 9}, "llama3": {"input": 0, "output": 0}}})
    )
    prices = Prices.load(str(file))
    assert prices.of("openai:gpt-5-mini") == Price(input=9.0, output=9.0)
    assert prices.of("openai-chat:llama3") == Price(input=0.0, output=0.0)
    assert prices.of("openai:gpt-5") == SHIPPED.of("openai:gpt-5")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "which cannot be read: No such file or directory"),
        ("{", "which is not a table of prices (Invalid JSON"),
        ("[]", "which is not a table of prices"),
        ('{"llama3": {"input": 1, "output": 1}}', "models: field required"),
        ('{"models": {"llama3": {"input": 1}}}', "models.llama3.output: field required"),
        ('{"models": {"llama3": {"input": "1", "output": 1}}}', "models.llama3.input: input should be a valid number"),
        ('{"models": {"llama3": {"input": -1, "output": 1}}}', "models.llama3.input: input should be greater than"),
        ('{"models": {"llama3": {"input": 1, "output": 1, "cached": 1}}}', "models.llama3.cached: extra inputs"),
    ],
)
def test_an_invalid_price_file_is_refused_with_a_sentence(tmp_path: Path, content: str | None, says: str) -> None:
    """It names the file, the fault and the expected form."""
    file = tmp_path / "prices.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DeclarationError) as error:
        Prices.load(str(file))
    assert str(error.value).startswith(f"MULLIGAN_PRICES names {file}, ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": []}, "model is an empty list"),
        ({"model": ["openai:a", "openai:a"]}, "names 'openai:a' twice"),
        ({"model": ["openai:a", "b"]}, "the model is 'b'"),
        ({"model": ["openai:a", None]}, "the model is None"),
        ({"model": None}, "the model is None"),
        ({"model": "openai:a", "max_cost": 0}, "max_cost is 0"),
        ({"model": "openai:a", "max_cost": -1.5}, "max_cost is -1.5"),
        ({"model": "openai:a", "max_cost": float("inf")}, "max_cost is inf"),
        ({"model": "openai:a", "max_cost": "1"}, "max_cost is '1'"),
        ({"model": "openai:a", "max_cost": True}, "max_cost is True"),
    ],
)
def test_an_invalid_limit_or_list_of_models_is_refused_at_declaration(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError) as error:
        Agent(name="a", **options)
    assert says in str(error.value)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("models", "stated", "last", "before"),
    [
        ("openai:a", None, PATIENCE, None),
        ("openai:a", 5, 5.0, None),
        (["openai:a"], None, PATIENCE, None),
        (["openai:a", "openai:b"], None, PATIENCE, FALLBACK_PATIENCE),
        (["openai:a", "openai:b"], HOUR, 3600.0, None),
    ],
)
def test_the_default_model_patience_depends_on_a_following_model(
    models: Any, stated: Any, last: float, before: float | None
) -> None:
    """An hour for the last model of a list, and a minute for the others."""
    agent = Agent(name="a", model=models, model_patience=stated)
    assert (model_patience(agent), resolve_models(agent, RunInput(agent="a"), TABLE).fallback_patience) == (
        last,
        before,
    )


def test_unset_optional_fields_are_left_out_of_the_json() -> None:
    assert ModelFacts(model="openai:a").model_dump(mode="json") == {"model": "openai:a"}
    given = RunInput(agent="a", prompt="Hi.").model_dump(mode="json")
    assert not {"max_cost", "max_total_tokens"} & set(given)
    assert "cost" not in RunResult(status="completed").model_dump(mode="json")
    assert "cache_write_tokens" not in Usage().model_dump(mode="json")


def test_all_models_of_a_list_have_the_same_output_strategy() -> None:
    mixed = Agent(name="a", model=["openai:a", "openai-chat:b"], output={"type": "object"})
    assert [mixed.output_strategy(model) for model in ("openai:a", "openai-chat:b", "openai:c", "openai-chat:c")] == [
        "tool", "tool", "provider", "tool",
    ]  # fmt: skip
    one = Agent(name="a", model=["openai:a", "openai:b"], output={"type": "object"})
    assert (one.output_strategy("openai:a"), one.output_strategy("openai-chat:a")) == ("provider", "tool")
    chosen = Agent(name="a", model="openai:a", output=ToolStrategy({"type": "object"}))
    assert chosen.output_strategy("openai:a") == "tool"


FACTS: dict[str, Any] = {
    "model": "openai:big", "max_steps": 9, "max_sub_runs": 9, "model_timeout": 300, "model_patience": 3600, "tools": {}, "digest": "",
    "definition": {"instructions": "", "tools": []},
}  # fmt: skip


def turn(cost: float | None, **facts: Any) -> Turn:
    about = {"number": 1, "input": {"agent": "a"}, "trace": "", "facts": {**FACTS, **facts}}
    return Turn.model_validate({**about, "result": {"status": "completed", "cost": cost}})


def test_a_turn_sums_usage_and_cost_and_checks_its_limits() -> None:
    """Without rounding noise. An unknown cost stays unknown, but its known part counts for the limit."""
    spending = turn(0.0, max_cost=0.35)
    for _ in range(3):
        spending.add_usage(Usage(input_tokens=1), 0.1)
    assert (spending.result.cost, spending.result.usage.input_tokens) == (0.3, 3)
    assert spending.limit_reached is None
    spending.add_usage(Usage(output_tokens=2), None)
    assert spending.result.cost is None
    spending.add_usage(Usage(), 0.05)
    assert spending.result.cost is None
    assert spending.limit_reached == "max_cost"
    again = Turn.model_validate(spending.model_dump(mode="json"))
    assert (again.spent, again.limit_reached) == (0.35, "max_cost")


def test_a_turn_without_known_prices_counts_tokens_only() -> None:
    unpriced = turn(None)
    unpriced.add_model_call(unpriced.model, Usage(input_tokens=5))
    assert (unpriced.result.cost, unpriced.result.usage.input_tokens, unpriced.models) == (None, 5, ["openai:big"])
    assert not {"at", "spent"} & set(unpriced.model_dump(mode="json"))


def test_a_limit_counts_what_is_known_of_each_model_call() -> None:
    """A tier of unknown price as the standard one, and the calls that the provider carried out."""
    prices = {"openai:big": Price(input=2.0, output=8.0), "openai:search": Price(input=0.0, output=0.0, calls=10.0)}
    spending = turn(0.0, prices=prices)
    usage = Usage(input_tokens=1_000_000, tier="scale")
    spending.add_model_call("openai:big", usage)  # as a summary
    assert (spending.spent, spending.result.cost) == (2.0, None)
    spending.add_model_call(
        "openai:big", sum([usage], Usage()), {"openai:big": usage}
    )  # as the repair of a script's call
    assert spending.spent == 4.0
    message = {"role": "assistant", "text": "done"}
    hosted = [{"id": each, "name": "search", "arguments": "{}", "status": "completed"} for each in "12"]
    spending.add_answer(ModelAnswer.model_validate({"message": message, "usage": usage, "hosted_calls": hosted}))
    assert (spending.spent, spending.result.steps) == (6.02, 1)


def test_cost_is_a_metric_by_agent_and_status_for_known_costs_only() -> None:
    """`mulligan.run.cost`."""
    reader = InMemoryMetricReader()
    metrics = Metrics(reader, exports=False)
    metrics.record_run(3, agent="a", status="completed", cost=0.25)
    metrics.record_run(3, agent="a", status="completed")
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric for of in data.resource_metrics for scope in of.scope_metrics for metric in scope.metrics
    }
    [point] = found["mulligan.run.cost"].data.data_points
    assert (point.sum, point.count, found["mulligan.run.cost"].unit) == (0.25, 1, "{USD}")  # type: ignore[union-attr]
    assert dict(point.attributes or {}) == {"gen_ai.agent.name": "a", "mulligan.status": "completed"}
    metrics.shutdown()


@pytest.mark.parametrize(
    ("shown", "text"),
    [({}, ""), ({"cost": None}, ""), ({"cost": 0.0}, ""), ({"cost": 0.000012}, ", $0.000012"), ({"cost": 10.0}, ", $10"), ({"cost": 12.5}, ", $12.5")],
)  # fmt: skip
def test_commands_print_the_cost_of_a_run(shown: dict[str, Any], text: str) -> None:
    assert cost_of(shown) == text
