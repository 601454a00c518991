"""The part of a client with which an attempt lets the server forget the worker that was lost, for tests without a server."""

from __future__ import annotations

from typing import Any

from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.service import RPCError


class ResetRequests:
    """It notes the runs. `error`: what the server answers."""

    def __init__(self, error: RPCError | None = None) -> None:
        self.namespace, self.workflow_service, self.runs, self._error = "default", self, list[str](), error

    async def reset_sticky_task_queue(self, request: ResetStickyTaskQueueRequest, **_: Any) -> None:
        """Note the run."""
        self.runs.append(request.execution.workflow_id)
        if self._error:
            raise self._error
