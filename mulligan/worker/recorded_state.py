"""A workflow that a query brings back from history answers from what its workflow tasks have recorded, and no further.

A query of a run that no worker has cached is sent with the run's whole history. Events that arrived after the last workflow
task (an activity's result, a signal) are in it, although no workflow task has delivered them yet. Temporal's Core SDK
delivers them to the workflow nevertheless: the workflow goes on, and stays cached in that state. The next workflow task can
bring an update: the workflow then sends the commands of the two in an order that replay does not produce, as a replay
delivers an update before the result that came with the same workflow task. Every later replay of the run fails with
`[TMPRL1100] Nondeterminism error: Update machine does not handle this event`, and the run is stuck for ever.
docs/decisions/2026-11-22-queries-and-updates.md has the evidence.

`RecordedStateRunner` does not deliver such events: the query is answered without them, and the workflow is then removed
from the worker's cache, so that the next workflow task replays it and delivers them in the recorded order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from mulligan.worker.workflow_cache import WorkflowCache

if TYPE_CHECKING:
    from temporalio.workflow import _Definition

__all__ = ["RecordedStateRunner"]


class _Activate(Protocol):
    def __call__(self, act: WorkflowActivation) -> WorkflowActivationCompletion: ...


class RecordedStateRunner(WorkflowRunner):
    """Runs workflows by another runner; keeps a worker's cache, and holds back events that no workflow task has recorded."""

    def __init__(self, runner: WorkflowRunner, cache: WorkflowCache) -> None:
        self._runner = runner
        self._cache = cache

    def prepare_workflow(self, defn: _Definition) -> None:
        """As the other runner does."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """As the other runner does."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The other runner's instance, whose activations pass through `_Recorded`."""
        instance = self._runner.create_instance(det)
        instance.activate = _Recorded(instance.activate, self._cache)  # type: ignore[method-assign]
        return instance


class _Recorded:
    """The activations of one workflow instance."""

    def __init__(self, activate: _Activate, cache: WorkflowCache) -> None:
        self._activate = activate
        self._cache = cache
        self._length = 0
        """Events of the history that the workflow has seen."""
        self._task: tuple[int, int] | None = None
        """The newest workflow task: its start in nanoseconds since the epoch, and the history's size in bytes then."""
        self._unrecorded: list[WorkflowActivationJob] = []
        self._local_activities: set[int] = set()
        """Those that run: their workflow task is not done, and the SDK would cancel them where the run is removed."""

    def __call__(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Handle an activation, and note in the cache whether the run is active."""
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if "remove_from_cache" in kinds:
            self._cache.removed(act.run_id)
            return self._activate(act)
        self._cache.active(act.run_id)
        is_query = kinds == {"query_workflow"}
        completion = self._query(act) if is_query else self._deliver(act)
        self._local_activities -= {job.resolve_activity.seq for job in act.jobs if job.HasField("resolve_activity")}
        self._local_activities |= {
            command.schedule_local_activity.seq
            for command in completion.successful.commands
            if command.HasField("schedule_local_activity")
        }
        if not self._local_activities and (is_query or not act.is_replaying):  # a replay goes on
            self._cache.idle(act.run_id)
        return completion

    def _query(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if self._unrecorded:
            self._cache.evict(act.run_id)
        return self._activate(act)

    def _deliver(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Deliver events to the workflow. Those that no workflow task has recorded are kept, and not delivered."""
        task = act.timestamp.ToNanoseconds(), act.history_size_bytes
        is_unrecorded = self._is_unrecorded(act, task)
        self._length, self._task = act.history_length, task
        if is_unrecorded:
            self._unrecorded += act.jobs
            completion = WorkflowActivationCompletion(run_id=act.run_id)
            completion.successful.SetInParent()
            return completion
        if self._unrecorded:
            # The run was not removed in time: both are delivered at once, as a replay will deliver them.
            act.jobs.extend(self._unrecorded)
            self._unrecorded = []
        return self._activate(act)

    def _is_unrecorded(self, act: WorkflowActivation, task: tuple[int, int]) -> bool:
        """Whether there are new events, but no new workflow task.

        The start of a workflow task brings its time and the size of the history. With both unchanged, the history can only
        be longer where events were delivered without a workflow task. A server that states no sizes (the time-skipping test
        server) has times that are too coarse to tell.
        """
        _, size = task
        return not act.is_replaying and act.history_length > self._length and size > 0 and task == self._task
