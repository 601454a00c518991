"""The benchmark: the answers of its endpoint, the repeats of its jobs, and the page that is printed from measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import endpoint
from benchmarks.__main__ import SHORT_TABLES
from benchmarks.goals import goals
from benchmarks.page import IN_SHORT, in_short, render
from benchmarks.passage import BYTES, HOLD, passage, prompt
from benchmarks.plan import QUICK, WHOLE, chosen, jobs
from benchmarks.reading import Reading
from benchmarks.results import Job, Results

FACTS: dict[str, Any] = {
    "cpu": "A CPU",
    "cores": 2,
    "memory_gib": 8,
    "system": "Linux",
    "python": "3.11",
    "server": "temporal version 1",
    "versions": {"temporalio": "1.35.0"},
    "rivals": {"strands": {"strands-agents": "1.62.0"}},
}


def chat(steps: int) -> dict[str, Any]:
    """A request of Chat Completions with that many tool results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt(3, "ab12")}]
    for number in range(steps):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": passage(number)})
    return {"model": "bench", "messages": messages}


def responses(steps: int) -> dict[str, Any]:
    """The same for the Responses API."""
    items: list[dict[str, Any]] = [{"role": "user", "content": prompt(3, "ab12")}]
    for number in range(steps):
        items.append({"type": "function_call", "call_id": f"call_{number}", "name": "look", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"call_{number}", "output": passage(number)})
    return {"model": "bench", "input": items}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("made", [chat, responses])
@pytest.mark.parametrize(("steps", "number"), [(0, 0), (2, 2), (3, None)])
def test_the_endpoint_counts_the_tool_results_of_a_request(
    made: Any, separators: Any, steps: int, number: int | None
) -> None:
    asked = endpoint.read(json.dumps(made(steps), separators=separators).encode())
    assert asked is not None
    assert (asked.run, asked.results, asked.number, asked.streams) == ("ab12", steps, number, False)


def test_a_prompt_with_hold_is_read_as_a_call_of_the_waiting_tool() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": prompt(0, "ab12", hold=True)}], "stream": True})
    asked = endpoint.read(body.encode())
    assert asked is not None
    assert (asked.number, asked.streams) == (HOLD, True)


def test_the_endpoint_refuses_an_unknown_prompt() -> None:
    assert endpoint.read(b'{"messages": []}') is None


def test_passages_have_the_same_size_and_different_words() -> None:
    made = [passage(number) for number in range(2000)]
    assert {len(text.encode()) for text in made} == {BYTES}
    assert len(set(made)) == len(made)
    assert len(prompt(10_000, "a" * 10).encode()) == BYTES


def test_each_job_has_its_own_figure_contender_and_size() -> None:
    """By these a job is found in the results."""
    for sizes in (WHOLE, QUICK):
        made = jobs(sizes)
        assert len({(job.figure, job.contender, job.size) for job in made}) == len(made)
    assert {job.figure for job in chosen(jobs(WHOLE), ["memory"], ["strands"])} == {"memory"}


def test_fewer_repeats_can_be_chosen_but_not_more() -> None:
    repeats = [
        [job.repeats for job in chosen(jobs(WHOLE), ["memory"], ["strands"], repeats=most)] for most in (None, 1, 9)
    ]
    assert repeats == [[WHOLE.memory_repeats], [1], [WHOLE.memory_repeats]]


def test_a_job_with_enough_measurements_is_not_measured_again(tmp_path: Path) -> None:
    job = Job("memory", "strands", 30, repeats=2)
    results = Results(tmp_path)
    assert results.missing(job) == [0, 1]
    results.add(job, 0, steps=100)
    assert Results(tmp_path).missing(job) == [1]
    results.forget([job])
    assert Results(tmp_path).missing(job) == [0, 1]


@pytest.fixture
def read(tmp_path: Path) -> Reading:
    """Some measurements: Mulligan takes 1.05 times the floor's time, Strands 3 times."""
    results = Results(tmp_path)
    sizes = {"mulligan": (30_000, 110_000, 400_000), "strands": (200_000, 2_000_000, 16_000_000)}
    for name, bytes_ in sizes.items():
        for steps, size in zip((10, 40, 160), bytes_, strict=True):
            results.add(Job("history", name, steps), 0, runs=1, events=12 * steps, bytes=size, carried_bytes=0)
    cpu = dict.fromkeys(("worker", "server", "endpoint", "driver"), 0.5)
    for name, seconds in (("mulligan", 2.1), ("strands", 6.0)):
        for repeat in range(3 if name == "strands" else 5):
            floors = {
                "floor": {"seconds": 2.0, "cpu": cpu},
                "floor-http": {"seconds": 1.9, "cpu": {**cpu, "worker": 0.48}},
            }
            timed = {**floors, name: {"seconds": seconds, "cpu": cpu}}
            results.add(Job("speed", name, 160), repeat, steps=160, runs=1, timed=timed)
            results.add(Job("throughput", name, 20), repeat, steps=20, runs=20, timed=timed)
    for name, held in (("mulligan", 90), ("strands", 80)):
        memory = {"idle": {"private": 0, "resident": 0}, "held": {"private": held << 20, "resident": held << 20}}
        results.add(Job("memory", name, 10), 0, steps=100, **memory)
    ended = {"runs": 2, "bytes": 1, "carried_bytes": 1, "seconds": 3}
    results.add(
        Job("survival", "mulligan", 10_000),
        0,
        steps=9_000,
        outcome="TerminatedError: too | long",
        server="1 (Server 1.2, UI 3)",
        **ended,
    )
    return Reading(Results(tmp_path))


def test_goals_are_compared_with_the_measured_figures(read: Reading) -> None:
    told = {(goal.figure, goal.aim): goal for goal in goals(read)}
    reached = {figure: goal.reached for (figure, _), goal in told.items()}
    assert reached["growth of history"] is True
    assert reached["history of a step"] is True
    assert reached["history of 40 steps"] is True
    assert reached["steps survived"] is False
    assert reached["time of a step at 160 steps, over HTTP, against the floor"] is True
    with_http = "160 steps, over HTTP, against the floor with HTTP"
    assert reached[f"time of a step at {with_http}"] is False
    assert (
        told[f"the worker's CPU time of a step at {with_http}", "at most 1.05 times"].measured
        == "1.04 (1.04–1.04) times"
    )
    assert told["steps a second, 20 runs at once", "above every rival"].reached is True
    assert told["memory of an open run of 100 steps", "at most 1,024 KiB"].reached is False
    assert reached["memory of an open run of 100 steps"] is False


def test_the_page_prints_the_measured_figures(read: Reading) -> None:
    page = render(read, FACTS, ["history.svg"])
    assert "| Mulligan | 30,000 | 110,000 | 400,000 | 2,667 → 2,417 |" in page
    assert (
        "| Strands Agents, 160 steps | 37.5 (37.5–37.5, of 3) | 3.00 (3.00–3.00, of 3) | 3.16 (3.16–3.16, of 3) |"
        in page
    )
    assert "| Mulligan, 160 steps | 13.1 (13.1–13.1) |" in page
    assert "| Mulligan | 9,000 | TerminatedError: too / long | 2 |" in page
    assert "![](benchmarks/history.svg)" in page
    assert "**no**" in page
    assert "## Replay" not in page  # it was not measured


def test_the_seconds_of_commands_stand_beside_their_goals(tmp_path: Path) -> None:
    seconds = {
        "import mulligan": 0.19,
        "from mulligan import Agent, tool": 0.4,
        "mulligan --help": 0.31,
        "python -c ''": 0.02,
    }
    results = Results(tmp_path)
    for repeat in range(5):
        results.add(Job("start", "mulligan", 1), repeat, seconds=seconds)
    told = {goal.figure: (goal.measured, goal.reached) for goal in goals(Reading(results))}
    assert told == {
        "`import mulligan`": ("0.19 (0.19–0.19) s", True),
        "`from mulligan import Agent, tool`": ("0.40 (0.40–0.40) s", None),
        "`mulligan --help`": ("0.31 (0.31–0.31) s", False),
        "`python -c ''`": ("0.02 (0.02–0.02) s", None),
    }


def test_the_committed_page_equals_the_one_printed_from_the_committed_results() -> None:
    root = Path(__file__).parent.parent.parent
    results = Results(root / "benchmarks" / "results")
    facts = json.loads((results.folder / "machine.json").read_text())
    plots = sorted(path.name for path in (root / "docs" / "benchmarks").glob("*.svg"))
    assert (root / "docs" / "benchmarks.md").read_text() == render(Reading(results), facts, plots)
    for page in SHORT_TABLES:
        short = page.read_text().partition(IN_SHORT[0])[2].partition(IN_SHORT[1])[0]
        assert short.strip() == in_short(Reading(results), facts), page


def test_the_page_shows_the_newest_figures_of_waiting_runs(tmp_path: Path) -> None:
    """Without evicted runs, there is no cost of their return."""
    woken = {"runs": 300, "seconds_p50": 0.06, "seconds_p99": 0.25, "worker_cpu_ms": 25.0}
    line = {"kind": "timer", "runs": 10_000, "worker_idle_mb": 100, "worker_waiting_mb": 300.4, "worker_most_mb": 305,
            "server_kb_per_run": 79, "woken_from_cache": woken, "load": 2.0, "at": "2026-11-23T05:27:08+00:00",
            "commit": "abc1234"}  # fmt: skip
    lines = [{**line, "woken_after_eviction": {**woken, "seconds_p99": 9.0}}, line]
    (tmp_path / "waiting.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (row,) = [each for each in render(Reading(Results(tmp_path)), FACTS).splitlines() if "10,000, timer" in each]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == ["100 → 300 (305)", "79", "0.060, 0.250", "–", "25, –"]
    assert cells[6] == "2026-11-23, commit abc1234, load 2.0"
