"""Applies the workarounds to a worker: the only place where `activate` of a workflow's instance is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from temporalio import __version__ as sdk_version
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from mulligan.worker.sdk_workarounds.readable_failures import remove_unreadable_details
from mulligan.worker.sdk_workarounds.readable_signals import ReadableSignals, waits_of_signal
from mulligan.worker.sdk_workarounds.recorded_state import RecordedActivations
from mulligan.worker.sdk_workarounds.refused_attributes import AttributesOfRun, RefusedAttributes
from mulligan.worker.sdk_workarounds.start_arguments import join_arguments
from mulligan.worker.sdk_workarounds.unreadable_payloads import UnreadablePayloads, decode_without_errors, is_new
from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache
from mulligan.worker.supervisor_link import RunPart
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.listed_status import ARE_REFUSED

if TYPE_CHECKING:
    from temporalio.workflow import _Definition

TRIED_VERSIONS = frozenset({"1.35.0"})
"""The versions of temporalio with which `make test-sdk` passes: all workarounds work there, and all of them are needed."""


class _OnTask(Protocol):
    def __call__(self, workflow_id: str, run_id: str, *, doing: RunPart) -> None:
        """A worker handles the run."""


def apply_workarounds(worker: Worker, cache: WorkflowCache, report: Callable[[str], None]) -> None:
    """Apply those that need the worker itself, before it runs. Its configuration has a `WorkaroundRunner` with the cache.

    `report`: called with a line for operators if Mulligan was not tried with this version of temporalio.

    Raises:
        DeclarationError: this version of temporalio lacks a private part that is needed.
    """
    if sdk_version not in TRIED_VERSIONS:
        tried = ", ".join(sorted(TRIED_VERSIONS))
        report(
            f"warning: Mulligan works around faults of temporalio {tried}, and was not tried with {sdk_version}, which is "
            "installed. If a workflow task fails, install a version that was tried."
        )
    cache.attach(worker)
    decode_without_errors(worker)


class WorkaroundRunner(WorkflowRunner):
    """Wraps another runner: activations pass through all workarounds before they reach a workflow."""

    def __init__(
        self,
        runner: WorkflowRunner,
        cache: WorkflowCache,
        on_task: _OnTask | None = None,
        on_done: Callable[[str, str], None] | None = None,
    ) -> None:
        """`on_task` is called when a workflow task or a query begins, in its thread; `on_done` with workflow and run when a
        workflow task was handled that was no replay.
        """
        self._runner = runner
        self._cache = cache
        self._on_task, self._on_done = on_task, on_done
        self._unreadable = UnreadablePayloads()
        self._refused_attributes = RefusedAttributes()

    def prepare_workflow(self, defn: _Definition) -> None:
        """Let the other runner prepare the workflow."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Pass the types on to the other runner."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create the other runner's instance, with another `activate`."""
        run_id, refused, on_task, on_done = det.info.run_id, self._refused_attributes, self._on_task, self._on_done
        functions = {**det.extern_functions, ARE_REFUSED: lambda: refused.are_refused(run_id)}
        instance = self._runner.create_instance(dataclasses.replace(det, extern_functions=functions))
        converter = det.payload_converter_factory()
        signals, attributes = ReadableSignals(converter, det), AttributesOfRun(refused, det.info)
        is_agent_run, activate_workflow = issubclass(det.defn.cls, AgentWorkflow), instance.activate

        def activate_recorded(act: WorkflowActivation) -> WorkflowActivationCompletion:
            self._unreadable.check(act, lambda name: waits_of_signal(det.defn, name))
            if is_agent_run:
                join_arguments(act)
            signals.make_readable(act)
            remove_unreadable_details(act, converter)
            attributes.before(act)
            completion = activate_workflow(act)
            attributes.after(act, completion)
            return completion

        recorded = RecordedActivations(activate_recorded, self._cache)

        def activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
            if on_task is not None:
                _report(act, det.info.workflow_id, on_task)
            completion = recorded(act)
            if on_done is not None and is_new(act):
                on_done(det.info.workflow_id, act.run_id)
            return completion

        instance.activate = activate  # type: ignore[method-assign]
        return instance


def _report(act: WorkflowActivation, workflow_id: str, on_task: _OnTask) -> None:
    if not any(job.HasField("remove_from_cache") for job in act.jobs):
        is_query = all(job.HasField("query_workflow") for job in act.jobs)
        on_task(workflow_id, act.run_id, doing="replay" if act.is_replaying else "query" if is_query else "task")
