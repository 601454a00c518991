"""Which activations reach a workflow, and when its run is evicted from the cache; with activations of the SDK.

tests/live/test_queries_and_updates.py has the same on a real server, where the order is the server's to choose.
"""

from __future__ import annotations

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from mulligan.worker.sdk_workarounds import workflow_cache
from mulligan.worker.sdk_workarounds.recorded_state import RecordedActivations
from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache


class Cache(WorkflowCache):
    """Records the evicted runs."""

    def __init__(self, size: int = 10) -> None:
        super().__init__(size)
        self.evicted: list[str] = []

    def evict(self, run_id: str) -> None:
        self.forget(run_id)
        self.evicted.append(run_id)


class Workflow:
    """Records the names of the jobs that it gets; returns commands that start local activities, or none."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []
        self.starts: list[int] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.given.append([job.WhichOneof("variant") or "" for job in act.jobs])
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        completion.successful.SetInParent()
        for seq in self.starts:
            completion.successful.commands.add().schedule_local_activity.seq = seq
        return completion


def activation(
    *jobs: str, length: int, task: int, size: int | None = None, replaying: bool = False, run: str = "run"
) -> WorkflowActivation:
    """An activation of the workflow task that began at second `task`, with `length` events and `size` bytes of history."""
    act = WorkflowActivation(
        run_id=run,
        history_length=length,
        is_replaying=replaying,
        history_size_bytes=100 * task if size is None else size,
    )
    act.timestamp.FromSeconds(task)
    for kind in jobs:
        getattr(act.jobs.add(), kind).SetInParent()
    return act


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def workflow() -> Workflow:
    return Workflow()


@pytest.fixture
def recorded(workflow: Workflow, cache: Cache) -> RecordedActivations:
    """A run that was replayed up to its newest workflow task."""
    recorded = RecordedActivations(workflow.activate, cache)
    recorded(activation("initialize_workflow", length=3, task=1, replaying=True))
    recorded(activation("resolve_activity", length=9, task=2, replaying=True))
    workflow.given.clear()
    return recorded


def test_a_query_does_not_see_events_that_no_workflow_task_has_begun(
    recorded: RecordedActivations, workflow: Workflow, cache: Cache
) -> None:
    """The query is answered without them, and then the run is evicted."""
    completion = recorded(activation("resolve_activity", length=15, task=2))
    assert completion.WhichOneof("status") == "successful"
    assert not completion.successful.commands
    assert cache.evicted == []
    recorded(activation("query_workflow", length=15, task=2, replaying=True))
    assert workflow.given == [["query_workflow"]]
    assert cache.evicted == ["run"]


def test_a_cached_run_that_was_not_evicted_gets_the_events_of_both_tasks(
    recorded: RecordedActivations, workflow: Workflow
) -> None:
    """As in a replay."""
    recorded(activation("resolve_activity", length=15, task=2))
    recorded(activation("query_workflow", length=15, task=2, replaying=True))
    recorded(activation("do_update", length=16, task=3))
    assert workflow.given == [["query_workflow"], ["do_update", "resolve_activity"]]


@pytest.mark.parametrize(
    "act",
    [
        activation("resolve_activity", length=15, task=3),
        activation("resolve_activity", length=15, task=2, size=300),
        activation("resolve_activity", length=9, task=2),
        activation("resolve_activity", length=15, task=2, replaying=True),
    ],
    ids=["a new task", "a task that began in the same moment", "the same task goes on", "a replay"],
)
def test_a_query_sees_events_that_a_workflow_task_has_begun(
    recorded: RecordedActivations, workflow: Workflow, act: WorkflowActivation
) -> None:
    recorded(act)
    assert workflow.given == [["resolve_activity"]]


def test_without_history_sizes_from_the_server_all_events_are_delivered(workflow: Workflow, cache: Cache) -> None:
    """The server's times may be too coarse to distinguish two tasks."""
    recorded = RecordedActivations(workflow.activate, cache)
    recorded(activation("initialize_workflow", length=3, task=1, size=0))
    recorded(activation("resolve_activity", length=9, task=1, size=0))
    assert workflow.given == [["initialize_workflow"], ["resolve_activity"]]


def of_runs(workflow: Workflow, cache: Cache, *runs: str) -> None:
    """Send a workflow task to each run."""
    for run in runs:
        RecordedActivations(workflow.activate, cache)(activation("initialize_workflow", length=3, task=1, run=run))


def test_the_runs_idle_for_the_longest_time_are_evicted_first(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_cache, "IDLE_SECONDS", 0.0)
    cache = Cache(size=2)
    of_runs(workflow, cache, "a", "b", "a", "c", "d")
    assert cache.evicted == ["b", "a"]


def test_busy_runs_may_exceed_the_cache_limit_by_the_concurrent_tasks_only(workflow: Workflow) -> None:
    """Beyond that the run whose task has just ended is evicted."""
    cache = Cache(size=2)
    assert cache.limits(3) == {"max_cached_workflows": 8, "max_concurrent_workflow_tasks": 3}
    of_runs(workflow, cache, "a", "b", "c", "d", "e")
    assert cache.evicted == []
    of_runs(workflow, cache, "f")
    assert cache.evicted == ["f"]


def test_a_run_with_running_local_activities_is_not_evicted(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would cancel the activities and lose the workflow task."""
    monkeypatch.setattr(workflow_cache, "IDLE_SECONDS", 0.0)
    cache, workflow.starts = Cache(size=1), [7]
    recorded = RecordedActivations(workflow.activate, cache)
    recorded(activation("initialize_workflow", length=3, task=1, run="local"))
    workflow.starts = []
    of_runs(workflow, cache, "a", "b")
    assert cache.evicted == ["a", "b"]
    done = activation("resolve_activity", length=3, task=1, run="local")
    done.jobs[0].resolve_activity.seq = 7
    recorded(done)
    of_runs(workflow, cache, "c")
    assert cache.evicted == ["a", "b", "local"]


def test_without_a_cache_the_sdk_itself_evicts_each_run(workflow: Workflow) -> None:
    """It takes one workflow task at a time."""
    cache = Cache(size=0)
    assert cache.limits(32) == {"max_cached_workflows": 0, "max_concurrent_workflow_tasks": 1}
    of_runs(workflow, cache, "a", "b")
    assert cache.evicted == []
