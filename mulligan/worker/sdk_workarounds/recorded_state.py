"""Answers a query of a run that is not cached from the state at its last recorded workflow task, and no further.

A query of a run that no worker has cached is sent with the run's whole history. Events that arrived after the last workflow
task (an activity's result, a signal) are in that history, although no workflow task has delivered them yet. The Core SDK
delivers them to the workflow nevertheless: the workflow continues, and stays cached in that state. The next workflow task
can contain an update: the workflow then sends the commands of both in an order that no replay produces, because a replay
delivers an update before a result that came with the same workflow task. Every later replay of the run fails with
`[TMPRL1100] Nondeterminism error: Update machine does not handle this event`, and the run is stuck forever.
docs/decisions/2026-11-22-queries-and-updates.md has the evidence.

`RecordedStateRunner` does not deliver such events: the query is answered without them, and the workflow is then removed
from the worker's cache, so that the next workflow task replays it and delivers them in the recorded order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from mulligan.worker.sdk_workarounds.readable_failures import with_readable_failures
from mulligan.worker.sdk_workarounds.readable_signals import waits_of_signal, with_readable_signals
from mulligan.worker.sdk_workarounds.refused_attributes import RefusedAttributes
from mulligan.worker.sdk_workarounds.start_arguments import with_one_argument
from mulligan.worker.sdk_workarounds.unreadable_payloads import UnreadablePayloads
from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache
from mulligan.worker.supervisor_link import RunPart
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.listed_status import ARE_REFUSED

if TYPE_CHECKING:
    from temporalio.workflow import _Definition

__all__ = ["RecordedStateRunner"]


_Activate = Callable[[WorkflowActivation], WorkflowActivationCompletion]


class _OnTask(Protocol):
    def __call__(self, workflow_id: str, run_id: str, *, doing: RunPart) -> None:
        """A worker handles the run."""


class RecordedStateRunner(WorkflowRunner):
    """Wraps another runner: limits the worker's cache, and delays events that no workflow task has recorded."""

    def __init__(self, runner: WorkflowRunner, cache: WorkflowCache, on_task: _OnTask | None = None) -> None:
        """`on_task` is called when a workflow task or a query begins, in its thread."""
        self._runner = runner
        self._cache = cache
        self._on_task = on_task
        self._unreadable = UnreadablePayloads()
        self._refused_attributes = RefusedAttributes()

    def prepare_workflow(self, defn: _Definition) -> None:
        """Call the other runner."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Call the other runner."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The other runner's instance, whose activations pass through `_RecordedActivations`."""
        run_id, refused = det.info.run_id, self._refused_attributes
        functions = {**det.extern_functions, ARE_REFUSED: lambda: refused.are_refused(run_id)}
        instance = self._runner.create_instance(dataclasses.replace(det, extern_functions=functions))
        converter = det.payload_converter_factory()
        activate: _Activate = with_readable_failures(refused.watched(instance.activate, det.info), converter)
        activate = with_readable_signals(activate, converter, det)
        if issubclass(det.defn.cls, AgentWorkflow):
            activate = with_one_argument(activate)
        checked = self._unreadable.checked(activate, lambda name: waits_of_signal(det.defn, name))
        recorded = _RecordedActivations(checked, self._cache)
        reported = _reported(recorded, self._on_task, det.info.workflow_id) if self._on_task else recorded
        instance.activate = reported  # type: ignore[method-assign, assignment]
        return instance


def _reported(activate: _Activate, on_task: _OnTask, workflow_id: str) -> _Activate:
    def report_and_activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
        if not any(job.HasField("remove_from_cache") for job in act.jobs):
            on_task(workflow_id, act.run_id, doing=_doing(act))
        return activate(act)

    return report_and_activate


def _doing(act: WorkflowActivation) -> RunPart:
    if act.is_replaying:
        return "replay"
    return "query" if all(job.HasField("query_workflow") for job in act.jobs) else "task"


class _RecordedActivations:
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
