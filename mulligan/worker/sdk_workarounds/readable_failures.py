"""Removes the details of a failure that no converter reads.

The fault: an activity's failure has details of other programs in it: of the worker that ran it, of whoever completed it
by hand, and the last heartbeat's. The SDK reads them before any code of the workflow runs, and an error there fails the
workflow task, again and again. Without them the failure is what it was; `mulligan.workflows.activity_result` does the
same for results.

Upstream: temporalio/sdk-python issue 321 (closed, for the arguments of workflows only), temporalio/features issue 273
(open). Needed with temporalio 1.35.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.converter import PayloadConverter

from mulligan.wire.read_payload import read_payloads

MOST_CAUSES = 100
"""Causes of a failure, one below the other. The SDK reads them by recursion; Temporal's own limit of protobuf is 100."""


def remove_unreadable_details(act: WorkflowActivation, converter: PayloadConverter) -> None:
    """Leave the failures of an activation only details that the converter reads."""
    for job in act.jobs:
        for failure in _failures(job):
            _remove_unreadable(failure, converter)


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
