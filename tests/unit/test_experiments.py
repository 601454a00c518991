"""What scores may return, what a baseline says, and what an earlier run is compared by; without a server."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mulligan import Agent, DeclarationError, score, tool
from mulligan.activities.experiments.earlier_run import EarlierRun
from mulligan.activities.list_agents import agent_json
from mulligan.cli.app import app
from mulligan.cli.experiments.evaluate import tools_of
from mulligan.client.experiments.compare_tables import (
    compare_tables,
    means,
    means_by_version,
    read_baseline,
    side_by_side,
)
from mulligan.client.experiments.experiment_content import ExperimentError, _unpack, pack_content
from mulligan.client.experiments.start_experiment import start_experiment
from mulligan.score import read_score
from mulligan.values import Step, StepCall
from mulligan.wire.experiments import ExperimentContent, Row
from tests.support.experiment_agents import is_right


def row(
    name: str, outcome: Any = "same", value: Any = None, step: int | None = None, version: str | None = None
) -> Row:
    return Row(id=name, outcome=outcome, score=value, step=step, version=version)


def test_tables_of_several_versions_are_compared_by_version() -> None:
    """Where each has one version, the rows of a run are compared whatever it is."""
    before, now = row("a", version="old"), row("a", "other", version="new")
    assert compare_tables([before], [now])["worse"] == ["a"]
    better = row("a", version="new")
    assert compare_tables([before, now], [before, better]) == {"better": ["a (new)"], "worse": [], "changed": []}
    # So too if only one of the tables has several: a source without that version is not compared with another version's.
    assert compare_tables([before, now], [better]) == {"better": ["a (new)"], "worse": [], "changed": []}
    assert compare_tables([now], [before, better]) == {"better": ["a (new)"], "worse": [], "changed": []}
    assert side_by_side([before, now]) == [{"old": before, "new": now}]
    assert means_by_version([before, now]) == {"old": {"same": 1.0}, "new": {"same": 0.0}}
    assert means_by_version([row("a")]) == {}


@pytest.mark.parametrize(
    ("value", "read"),
    [(True, 1.0), (0, 0.0), (2.5, 2.5), ({"a": 1, "b": False}, {"a": 1.0, "b": 0.0})],
)
def test_a_score_is_a_number_or_a_mapping_of_numbers(value: Any, read: Any) -> None:
    assert read_score(value) == read


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1",
        float("nan"),
        float("inf"),
        10**400,
        {},
        {"a": "1"},
        {1: 1},
        {"": 1},
        dict.fromkeys(map(str, range(21)), 1),
    ],
)
def test_anything_else_is_refused_with_a_sentence(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\.$|;"):
        read_score(value)


def test_a_score_function_has_three_parameters_and_a_name() -> None:
    assert is_right.name == "tests.support.experiment_agents:is_right"
    for function in (lambda case, result, steps: 1, functools.partial(print, 1)):
        with pytest.raises(DeclarationError, match="top level of a module"):
            score(function)
    with pytest.raises(DeclarationError, match="must take three arguments"):
        score(read_score)


def test_a_mean_counts_rows_without_a_score_as_zero_and_without_scores_the_same_ones() -> None:
    assert means([row("a"), row("b", "other")]) == {"same": 0.5}
    assert means([row("a", value=1.0), row("b", "failed"), row("c", "skipped")]) == {"score": pytest.approx(1 / 3)}
    assert means([row("a", value={"x": 1.0}), row("b", value={"y": 2.0})]) == {"x": 0.5, "y": 1.0}


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ([row("a", value=0.0)], [row("a", value=1.0)], "better"),
        ([row("a", value=1.0)], [row("a", "failed"), row("a", value=1.0)], "worse"),
        ([row("a", value=1.0)], [row("a", "other", 1.0)], "changed"),
        ([row("a", "other", 1.0, 2)], [row("a", "other", 1.0, 3)], "changed"),
        ([row("a", value={"x": 1, "y": 0})], [row("a", value={"x": 0, "y": 1})], "changed"),
        ([row("a", value={"x": 1, "y": 0})], [row("a", value={"x": 1, "y": 1})], "better"),
        ([row("a", value=1.0)], [row("a", value={"x": 1})], "changed"),
        ([row("a")], [row("a", "diverged")], "worse"),
        ([row("a")], [row("a"), row("a"), row("a")], None),
        ([row("b")], [row("a", "failed")], None),
    ],
)
def test_a_baseline_says_what_became_of_each_source(before: list[Row], now: list[Row], verdict: str | None) -> None:
    assert compare_tables(before, now) == {
        each: (["a"] if each == verdict else []) for each in ("better", "worse", "changed")
    }


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 1}', '{"rows": [{"id": "a"}]}', "{" * 100_000])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(ExperimentError, match="is not what --json of an experiment has printed"):
        read_baseline(tmp_path / "table.json")


def step(number: int, *calls: tuple[str, Any]) -> Step:
    made = [StepCall(id=str(n), name=name, raw_arguments="{", arguments=given) for n, (name, given) in enumerate(calls)]
    return Step(step=number, model="scripted:m", tool_calls=made)


@pytest.mark.parametrize(
    ("now", "at"),
    [
        ([step(1, ("a", {"x": 1})), step(2, ("b", {}))], None),
        ([step(1, ("a", {"x": 1.0}), ("b", {}))], None),
        ([step(1, ("a", {"x": True})), step(2, ("b", {}))], 1),
        ([step(1, ("a", {"x": 1})), step(2, ("c", {}))], 2),
        ([step(1, ("a", {"x": 1})), step(2, ("b", None))], 2),
        ([step(1, ("a", {"x": 1})), step(2)], 2),
        ([step(1, ("a", {"x": 1})), step(2, ("b", {})), step(3, ("b", {}))], 3),
    ],
)
def test_calls_are_compared_in_their_order_by_name_and_arguments(now: list[Step], at: int | None) -> None:
    assert EarlierRun([step(1, ("a", {"x": 1})), step(2, ("b", {}))], "done").differs_at(now) == at


def test_content_that_is_too_large_or_damaged_is_refused() -> None:
    content = ExperimentContent(runs=[str(n) * 40 for n in range(900)])
    packed = pack_content(content, is_stored=False)
    assert _unpack(packed) == content
    for damaged in (packed[:50], b"", None, b"{}"):
        with pytest.raises(ExperimentError, match="cannot be read"):
            _unpack(damaged)


async def test_an_experiment_has_at_most_1000_rows() -> None:
    """It is refused before anything is started."""
    for count, sentence in ((0, "nothing to begin with"), (1_001, "1 to 1,000 rows; this one would have 1,001")):
        content = ExperimentContent(runs=[f"run-{number}" for number in range(count)])
        with pytest.raises(ExperimentError, match=sentence):
            await start_experiment(None, content, {"name": "many", "concurrency": 1}, "agents")  # type: ignore[arg-type]


def test_the_tools_that_run_are_also_those_of_agents_that_are_called_or_take_over() -> None:
    @tool
    def refund(euros: float) -> str:
        """Refund."""
        return f"{euros}"

    refunds = Agent(name="refunds", model="openai:m", tools=[refund])
    talker = Agent(name="talker", model="openai:m")
    asking = [refunds.as_tool(description="Refunds."), talker.as_tool(description="Talks.")]
    triage = Agent(name="triage", model="openai:m", tools=asking, handoffs=["elsewhere", "triage_again"])
    again = Agent(name="triage_again", model="openai:m", handoffs=[triage])
    agents = {each.name: agent_json(each) for each in (refunds, talker, triage, again)}
    handing_over = ["transfer_to_elsewhere", "transfer_to_triage_again", "those of elsewhere", "transfer_to_triage"]
    assert sorted(tools_of("triage", agents)) == sorted([*handing_over, "refund"])
    assert tools_of("talker", agents) == []
    short = {name: {"has_tools": agent["has_tools"]} for name, agent in agents.items()}
    assert (tools_of("refunds", short), tools_of("talker", short)) == (["those of refunds"], [])


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("eval", "--at-least", "nan"),
        ("whatif", "--at-least", "nan"),
        ("eval", "--at-least", "-inf"),
        ("whatif", "--max-cost", "inf"),
    ],
)
def test_a_limit_that_is_no_finite_number_is_refused(command: str, option: str, value: str) -> None:
    ran = CliRunner().invoke(app, [command, "x", "--agent", "x", option, value])
    assert (ran.exit_code, f"{value} is not finite" in ran.stderr) == (2, True), ran.stderr


@given(st.binary(max_size=200))
def test_no_content_ends_the_worker(data: bytes) -> None:
    with pytest.raises(ExperimentError):
        _unpack(b"\x28\xb5\x2f\xfd" + data)
