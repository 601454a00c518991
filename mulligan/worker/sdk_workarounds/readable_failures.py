"""Removes the details of a failure that no converter reads: the SDK would fail the workflow task, again and again.

An activity's failure has details of other programs in it: of the worker that ran it, of whoever completed it by hand, and
the last heartbeat's. The SDK reads them before any code of the workflow runs. Without them the failure is what it was, and
`mulligan.workflows.activity_result` does the same for results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import PayloadConverter

from mulligan.wire.read_payload import read_payloads

__all__ = ["with_readable_failures"]

_Activate = Callable[[WorkflowActivation], WorkflowActivationCompletion]
MOST_CAUSES = 100
"""Causes of a failure, one below the other. The SDK reads them by recursion; Temporal's own limit of protobuf is 100."""


def with_readable_failures(activate: _Activate, converter: PayloadConverter) -> _Activate:
    """The `activate` of a workflow's instance, whose failures have only details that the converter reads."""

    def activate_with_readable_failures(act: WorkflowActivation) -> WorkflowActivationCompletion:
        for job in act.jobs:
            for failure in _failures(job):
                _remove_unreadable(failure, converter)
        return activate(act)

    return activate_with_readable_failures


def _failures(job: WorkflowActivationJob) -> Iterator[Failure]:
    """The failures of a job. What is not set is not created: an empty failure would be one."""
    match job.WhichOneof("variant"):
        case "resolve_activity":
            yield from _failures_of_result(job.resolve_activity.result)
        case "resolve_child_workflow_execution":
            yield from _failures_of_result(job.resolve_child_workflow_execution.result)
        case "resolve_child_workflow_execution_start":
            started = job.resolve_child_workflow_execution_start
            if started.HasField("cancelled"):
                yield started.cancelled.failure
        case "resolve_signal_external_workflow":
            if job.resolve_signal_external_workflow.HasField("failure"):
                yield job.resolve_signal_external_workflow.failure
        case "resolve_request_cancel_external_workflow":
            if job.resolve_request_cancel_external_workflow.HasField("failure"):
                yield job.resolve_request_cancel_external_workflow.failure
        case "initialize_workflow":
            if job.initialize_workflow.HasField("continued_failure"):
                yield job.initialize_workflow.continued_failure


def _failures_of_result(result: object) -> Iterator[Failure]:
    for name in ("failed", "cancelled"):
        if result.HasField(name):  # type: ignore[attr-defined]  # of an activity or of a child workflow: both have these
            yield getattr(result, name).failure


def _remove_unreadable(failure: Failure, converter: PayloadConverter) -> None:
    causes = 0
    while True:
        for name, details in (
            ("application_failure_info", "details"),
            ("canceled_failure_info", "details"),
            ("timeout_failure_info", "last_heartbeat_details"),
        ):
            if failure.HasField(name):  # type: ignore[arg-type]
                info = getattr(failure, name)
                if info.HasField(details) and not _is_readable(getattr(info, details), converter):
                    info.ClearField(details)
        if not failure.HasField("cause"):
            return
        causes += 1
        if causes == MOST_CAUSES:
            failure.ClearField("cause")
            return
        failure = failure.cause


def _is_readable(details: Payloads, converter: PayloadConverter) -> bool:
    try:
        read_payloads(converter, details.payloads)
    except ValueError:
        return False
    return True
