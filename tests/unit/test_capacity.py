"""The page on capacity: it follows from the raw numbers, and its load from its parameters."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.capacity import FILE, jobs
from benchmarks.capacity_page import LIMITS, SIZES, render
from benchmarks.load_model import CLOUD_APS, CPU_SHARE, SLOTS, Cost, Counted, Demand, Limit, Load, paced
from benchmarks.results import Results, commit
from benchmarks.server_counts import Counts
from benchmarks.waiting import is_kept
from benchmarks.watchers import Writing, port_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
METRICS = """\
# HELP action ActionCounter
action{action_type="command_ScheduleActivityTask",namespace="default",operation="Respond",service_name="frontend"} 8
action{action_type="command_ScheduleActivityTask",namespace="other",operation="Respond",service_name="frontend"} 3
service_requests{namespace="default",operation="PollWorkflowTaskQueue",service_name="frontend"} 9
service_requests{namespace="default",operation="PollWorkflowTaskQueue",service_name="matching"} 9
service_requests{namespace="default",operation="PollWorkflowExecutionHistory",service_name="frontend"} 1
persistence_requests{namespace="default",operation="UpdateWorkflowExecution",service_name="history"} 26
persistence_requests{namespace="system",operation="GetTimerTasks",service_name="history"} 10
persistence_requests{namespace="default",operation="GetTaskQueueUserData",service_name="matching"} 2
"""


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted(Results(RESULTS, FILE), Results(RESULTS))


def test_the_committed_page_equals_the_one_printed_from_the_committed_results() -> None:
    printed = render(Results(RESULTS, FILE), Results(RESULTS), Load())
    assert (ROOT / "docs" / "capacity.md").read_text() == printed


def test_all_that_the_page_needs_was_counted() -> None:
    results = Results(RESULTS, FILE)
    assert [str(job) for job in jobs() if results.missing(job)] == []


def test_what_the_server_does_for_itself_is_not_counted() -> None:
    """And each request once, although several services of the server pass it on."""
    assert Counts.read(METRICS).since(Counts()) == {
        "actions": {"command_ScheduleActivityTask": 8},
        "requests": {"PollWorkflowTaskQueue": 9},
        "database": {"UpdateWorkflowExecution": 26},
    }


def test_twice_as_many_runs_need_twice_as_many_actions(counted: Counted) -> None:
    one, two = (Demand(runs, Load(), counted) for runs in (50_000, 100_000))
    assert two.actions == pytest.approx(2 * one.actions)
    assert two.bytes_a_day == pytest.approx(2 * one.bytes_a_day)


@pytest.mark.parametrize("name", asdict(Load()))
def test_each_part_of_the_load_matters(counted: Counted, name: str) -> None:
    figures = [
        (demand.actions, demand.requests, demand.processes, demand.replay)
        for load in (Load(), Load.parse(f"{name}={getattr(Load(), name) * 2}"))
        for demand in [Demand(100_000, load, counted)]
    ]
    assert figures[0] != figures[1]


def test_a_load_that_cannot_be_is_refused() -> None:
    assert Load.parse("steps_a_day=200,peak=10") == Load(steps_a_day=200, peak=10)
    assert Load.parse(str(Load())) == Load()
    with pytest.raises(ValueError, match=r"'steps' is not known; a load has steps_a_day=20,"):
        Load.parse("steps=3")
    with pytest.raises(ValueError, match=r"peak is 0; it must be above 0"):
        Load.parse("peak=0")


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_a_limit_is_met_where_the_page_says_so(counted: Counted, limit: Limit) -> None:
    runs = limit.met_at(Load(), counted)
    assert limit.needed(Demand(int(runs * 0.98), Load(), counted)) <= limit.most
    assert limit.needed(Demand(int(runs * 1.12) + 1, Load(), counted)) > limit.most


def test_there_are_enough_processes_for_the_load_and_not_one_more(counted: Counted) -> None:
    for runs in SIZES:
        demand = Demand(runs, Load(), counted)
        processes = demand.processes
        assert demand.cores_with(processes) <= processes * CPU_SHARE
        assert demand.calls <= processes * SLOTS
        fewer = processes - 1
        too_few = demand.cores_with(fewer) > fewer * CPU_SHARE or demand.calls > fewer * SLOTS
        assert too_few or processes == 2


def test_the_pace_of_live_text_is_that_of_the_workers() -> None:
    """12.5 a second for each of a few; at least once a second for each of many."""
    assert paced(4, 2) == pytest.approx(50)
    assert paced(100, 2) == pytest.approx(250)
    assert paced(10_000, 2) == pytest.approx(10_000)


def test_costs_are_added_part_by_part() -> None:
    assert Cost(1, 2, 3) + Cost(4, 5, 6) * 2 == Cost(9, 12, 15)
    assert CLOUD_APS == 500


@pytest.mark.parametrize(("runs", "replicas"), [(2, 3), (10, 3), (100, 3), (99, 3), (5, 2)])
def test_the_watchers_of_each_run_are_at_all_replicas(runs: int, replicas: int) -> None:
    written = [Writing(str(number)) for number in range(runs)]
    served = [(0, port) for port in range(replicas)]
    ports = [port_of(number, served, written) for number in range(runs * replicas)]
    assert all({*ports[run::runs]} == {*range(replicas)} for run in range(runs))


def test_waits_that_were_kept_for_this_commit_are_not_measured_again(tmp_path: Path) -> None:
    kept = tmp_path / "waiting.jsonl"
    assert not is_kept("timer", 10, kept)
    kept.write_text(json.dumps({"kind": "timer", "runs": 10, "commit": commit()}) + "\n")
    assert is_kept("timer", 10, kept)
    assert not is_kept("timer", 11, kept)
    assert not is_kept("person", 10, kept)
    kept.write_text(json.dumps({"kind": "timer", "runs": 10, "commit": "another"}) + "\n")
    assert not is_kept("timer", 10, kept)
