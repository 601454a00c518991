"""The part of a client with which an attempt lets the server forget the worker that was lost, for tests without a server."""

from __future__ import annotations

from typing import Any

from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse, ResetStickyTaskQueueRequest
from temporalio.service import RPCError


class ResetRequests:
    """It notes the runs. `error`: what the server answers. `timed_out`: the timeout by which the last attempt ended, if any."""

    def __init__(
        self,
        error: RPCError | None = None,
        timed_out: TimeoutType.ValueType | None = TimeoutType.TIMEOUT_TYPE_HEARTBEAT,
    ) -> None:
        self.namespace, self.workflow_service, self.runs, self._error = "default", self, list[str](), error
        self._failure = Failure()
        if timed_out is not None:
            self._failure.timeout_failure_info.timeout_type = timed_out

    async def describe_workflow_execution(self, *_: Any, **__: Any) -> DescribeWorkflowExecutionResponse:
        """The activity of `ActivityEnvironment`, and another one whose worker was lost."""
        other = Failure()
        other.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
        pending = [
            PendingActivityInfo(activity_id="test", last_failure=self._failure),
            PendingActivityInfo(activity_id="other", last_failure=other),
        ]
        return DescribeWorkflowExecutionResponse(pending_activities=pending)

    async def reset_sticky_task_queue(self, request: ResetStickyTaskQueueRequest, **_: Any) -> None:
        """Note the run."""
        self.runs.append(request.execution.workflow_id)
        if self._error:
            raise self._error
