"""Answers a query of a run that is not cached from the state at its last recorded workflow task, and no further.

The fault: a query of a run that no worker has cached is sent with the run's whole history. Events that arrived after the
last workflow task (an activity's result, a signal) are in that history, although no workflow task has delivered them yet.
The Core SDK delivers them to the workflow nevertheless: the workflow continues, and stays cached in that state. The next
workflow task can contain an update: the workflow then sends the commands of both in an order that no replay produces,
because a replay delivers an update before a result that came with the same workflow task. Every later replay of the run
fails with `[TMPRL1100] Nondeterminism error: Update machine does not handle this event`, and the run is stuck forever.
docs/decisions/2026-11-22-queries-and-updates.md has the evidence.

`RecordedActivations` does not deliver such events: the query is answered without them, and the workflow is then removed
from the worker's cache, so that the next workflow task replays it and delivers them in the recorded order.

Upstream: no issue known. temporalio/sdk-rust issue 943 (closed) is about the same order of commands, but has another
cause. Needed with temporalio 1.35.0.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache

_Activate = Callable[[WorkflowActivation], WorkflowActivationCompletion]


class RecordedActivations:
    """The activations of one workflow instance."""

    def __init__(self, activate: _Activate, cache: WorkflowCache) -> None:
        self._activate = activate
        self._cache = cache
        self._length = 0
        """How many events of the history the workflow has seen."""
        self._task: tuple[int, int] | None = None
        """The latest workflow task: its start in nanoseconds since the epoch, and the history's size in bytes then."""
        self._unrecorded: list[WorkflowActivationJob] = []
        self._local_activities: set[int] = set()
        """The running ones. Their workflow task has not ended, and the SDK would cancel them if the run were removed."""

    def __call__(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Handle an activation, and tell the cache whether the run is active."""
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if "remove_from_cache" in kinds:
            self._cache.forget(act.run_id)
            return self._activate(act)
        self._cache.mark_active(act.run_id)
        is_query = kinds == {"query_workflow"}
        completion = self._query(act) if is_query else self._deliver(act)
        self._local_activities -= {job.resolve_activity.seq for job in act.jobs if job.HasField("resolve_activity")}
        self._local_activities |= {
            command.schedule_local_activity.seq
            for command in completion.successful.commands
            if command.HasField("schedule_local_activity")
        }
        if not self._local_activities and (is_query or not act.is_replaying):  # a replay continues
            self._cache.mark_idle(act.run_id)
        return completion

    def _query(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if self._unrecorded:
            self._cache.evict(act.run_id)
        return self._activate(act)

    def _deliver(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Deliver events to the workflow; keep those that no workflow task has recorded."""
        task = act.timestamp.ToNanoseconds(), act.history_size_bytes
        is_unrecorded = self._is_unrecorded(act, task)
        self._length, self._task = act.history_length, task
        if is_unrecorded:
            self._unrecorded += act.jobs
            completion = WorkflowActivationCompletion(run_id=act.run_id)
            completion.successful.SetInParent()
            return completion
        if self._unrecorded:
            # The run was not removed in time: deliver both together, as a replay will.
            act.jobs.extend(self._unrecorded)
            self._unrecorded = []
        return self._activate(act)

    def _is_unrecorded(self, act: WorkflowActivation, task: tuple[int, int]) -> bool:
        """Whether there are new events, but no new workflow task.

        With each workflow task come its start time and the size of the history. If both are unchanged but the history is
        longer, the events were delivered without a workflow task. A server that sends no sizes (the time-skipping test
        server) has times that are too coarse for this check.
        """
        _, size = task
        return not act.is_replaying and act.history_length > self._length and size > 0 and task == self._task
