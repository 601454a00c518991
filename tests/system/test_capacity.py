"""`benchmarks.capacity` counts one run of each kind rightly, on a real server; `benchmarks.watchers` with several replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import capacity
from benchmarks.capacity import COUNT, FILE
from benchmarks.results import Job, Results
from benchmarks.watchers import measure

STEPS, RUNS = 2, 3


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "IDLE_SECONDS", 2)
    monkeypatch.setattr(capacity, "SETTLE_SECONDS", 2)


async def counted(figure: str, name: str, size: int, folder: Path) -> dict[str, Any]:
    results = Results(folder, FILE)
    await COUNT[figure](Job(figure, name, size), results)
    [line] = Results(folder, FILE).of(figure, name, size)
    return line


async def test_a_step_is_two_activities(tmp_path: Path) -> None:
    """The others of Temporal Cloud's list: the start, the two changes of the status in the list of runs, the marker of the end.
    The server also counts the memo, which the list does not have."""
    line = await counted("steps", "mulligan", STEPS, tmp_path)
    assert line["actions"] == {
        "grpc_StartWorkflowExecution": 1,
        "command_ScheduleActivityTask": 2 + 2 * STEPS,
        "command_UpsertWorkflowSearchAttributes": 2,
        "command_BatchMarkers": 1,
        "command_ModifyWorkflowProperties": 1,
    }
    tasks = 3 + 2 * STEPS
    assert line["requests"] == {
        "StartWorkflowExecution": 1,
        "PollWorkflowTaskQueue": tasks,
        "RespondWorkflowTaskCompleted": tasks,
        "RespondActivityTaskCompleted": 2 + 2 * STEPS,
    }
    assert (line["runs"], line["events"]) == (1, 21 + 12 * STEPS)
    assert line["database"]["UpdateWorkflowExecution"] == 8 + 6 * STEPS


async def test_a_run_that_waits_costs_nothing(tmp_path: Path) -> None:
    """Until its end, for which one update is an action, and the timer of its time is another."""
    line = await counted("wait", "timer", RUNS, tmp_path)
    begins, waits, ends = (line["phases"][name] for name in ("until it waits", "waiting", "end"))
    assert begins["actions"] == {
        "grpc_StartWorkflowExecution": RUNS,
        "command_ScheduleActivityTask": 3 * RUNS,
        "command_StartTimer": RUNS,
        "command_UpsertWorkflowSearchAttributes": 2 * RUNS,
        "command_ModifyWorkflowProperties": 2 * RUNS,
    }
    assert waits["actions"] == {}
    assert "RespondWorkflowTaskCompleted" not in waits["requests"]
    assert ends["actions"]["message_UpdateWorkflowExecution_Acceptance"] == RUNS
    assert ends["actions"]["command_ScheduleActivityTask"] == RUNS
    [seconds] = line["open_timers"]
    assert 86_390 < seconds <= 86_400


async def test_each_heartbeat_of_a_text_is_a_request_and_an_action(tmp_path: Path) -> None:
    line = await counted("live", "watched", 2, tmp_path)
    actions, requests = line["actions"], line["requests"]
    assert actions["grpc_RecordActivityTaskHeartbeat"] == requests["RecordActivityTaskHeartbeat"] > 0
    assert actions["grpc_QueryWorkflow"] == requests["QueryWorkflow"] > 0
    assert requests["DescribeWorkflowExecution"] > 0
    assert not any("Describe" in name for name in actions)


async def test_a_call_that_writes_nothing_sends_heartbeats(tmp_path: Path) -> None:
    line = await counted("call", "mulligan", 4, tmp_path)
    assert list(line["actions"]) == ["grpc_RecordActivityTaskHeartbeat"]
    assert line["actions"]["grpc_RecordActivityTaskHeartbeat"] == line["requests"]["RecordActivityTaskHeartbeat"]


async def test_a_list_of_runs_is_one_request_and_no_action(tmp_path: Path) -> None:
    line = await counted("list", "serve", 3, tmp_path)
    assert (line["actions"], line["requests"]["ListWorkflowExecutions"]) == ({}, 3)


@pytest.mark.parametrize("name", ["worker", "serve"])
async def test_a_process_without_runs_costs_no_action(name: str, tmp_path: Path) -> None:
    line = await counted("idle", name, 1, tmp_path)
    assert (line["actions"], "RespondWorkflowTaskCompleted" in line["requests"]) == ({}, False)


async def test_the_watchers_of_a_run_have_everything_from_each_replica() -> None:
    figures = await measure(runs=2, watchers=4, seconds=2, replicas=2, spread=0.2)
    assert (figures["replicas"], figures["right"]) == (2, 4)
    assert 0 < figures["first_text_p50"] <= figures["first_text_p99"]
