"""Runs the real activities without a server, in the SDK's `ActivityEnvironment`, with their own retry policies.

No time passes: retries start at once.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.common import RetryPolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, TimeoutError, TimeoutType
from temporalio.testing import ActivityEnvironment

from mulligan.client.converter import data_converter
from mulligan.worker.sdk_workarounds.activation_messages import ActivityResolution
from mulligan.worker.sdk_workarounds.temporal_definitions import activity_definition

NAMESPACE, TASK_QUEUE, RUN_ID = "testing", "agents", "run"
MOST_ATTEMPTS = 20
"""Attempts of an activity whose retry policy has no limit. After so many failures in a test, it would never succeed."""

_NO_SERVER = SimpleNamespace(config=SimpleNamespace(target_host=""))
PAYLOADS = data_converter.payload_converter


class Activities:
    """The activities of one workflow. `workflow`: the handle that they get, to query it."""

    def __init__(
        self, functions: Sequence[Callable[..., Any]], workflow: Any, workflow_id: str, workflow_type: str
    ) -> None:
        self.functions = functions
        self._known = {str(activity_definition(each).name): each for each in functions}
        self._workflow, self._workflow_id, self._workflow_type = workflow, workflow_id, workflow_type

    async def run(self, request: Any, *, is_local: bool) -> ActivityResolution:
        """Run attempts by the request's retry policy until one succeeds."""
        policy = RetryPolicy.from_proto(request.retry_policy)
        attempt, failure = 0, Failure()
        heartbeats: list[Any] = []
        while attempt < (policy.maximum_attempts or MOST_ATTEMPTS):
            attempt += 1
            try:
                value = await self._attempt(request, attempt, heartbeats, is_local=is_local)
            except asyncio.CancelledError:
                return cancelled()
            except Exception as error:  # noqa: BLE001 - a server would get any error
                failure = Failure()
                data_converter.failure_converter.to_failure(error, PAYLOADS, failure)
                kind = error.type if isinstance(error, ApplicationError) else type(error).__name__
                final = isinstance(error, ApplicationError) and error.non_retryable
                if final or kind in (policy.non_retryable_error_types or ()):
                    break
            else:
                resolution = ActivityResolution()
                resolution.completed.result.CopyFrom(PAYLOADS.to_payload(value))
                return resolution
        resolution = ActivityResolution()
        failed = resolution.failed.failure
        failed.message = "Activity task failed"
        failed.cause.CopyFrom(failure)
        failed.activity_failure_info.activity_type.name = request.activity_type
        return resolution

    async def _attempt(self, request: Any, attempt: int, heartbeats: list[Any], *, is_local: bool) -> Any:
        function = self._known.get(request.activity_type)
        if function is None:
            raise ApplicationError(f"There is no activity {request.activity_type!r}.", non_retryable=True)
        limit = request.start_to_close_timeout.ToTimedelta()
        environment = ActivityEnvironment(client=_Client(self._workflow))  # type: ignore[arg-type]
        environment.payload_converter = PAYLOADS
        environment.on_heartbeat = lambda *details: heartbeats.__setitem__(slice(None), details)
        environment.info = dataclasses.replace(
            environment.info,
            activity_id=str(request.seq),
            activity_type=request.activity_type,
            attempt=attempt,
            heartbeat_details=list(heartbeats),
            heartbeat_timeout=None if is_local else request.heartbeat_timeout.ToTimedelta() or None,
            is_local=is_local,
            namespace=NAMESPACE,
            start_to_close_timeout=limit,
            task_queue=getattr(request, "task_queue", "") or TASK_QUEUE,
            workflow_id=self._workflow_id,
            workflow_namespace=NAMESPACE,
            workflow_run_id=RUN_ID,
            workflow_type=self._workflow_type,
        )
        hints = activity_definition(function).arg_types
        arguments = PAYLOADS.from_payloads(request.arguments, hints)
        try:
            async with asyncio.timeout(limit.total_seconds() or None) as timeout:
                return await environment.run(function, *arguments)
        except builtins.TimeoutError:
            if not timeout.expired():
                raise  # the activity raised it
            raise TimeoutError(
                "activity StartToClose timeout", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]
            ) from None


def cancelled() -> ActivityResolution:
    """The result of an activity that was cancelled."""
    resolution = ActivityResolution()
    resolution.cancelled.failure.canceled_failure_info.SetInParent()
    return resolution


@dataclasses.dataclass(frozen=True)
class _Client:
    """The part of a client that activities use: the handle of their own workflow, for queries."""

    workflow: Any
    namespace: str = NAMESPACE
    data_converter: DataConverter = data_converter

    @property
    def service_client(self) -> Any:
        """The connection to a server: there is none."""
        return _NO_SERVER

    @property
    def operator_service(self) -> _Client:
        """The service that knows the search attributes."""
        return self

    async def list_search_attributes(self, *_: Any, **__: Any) -> ListSearchAttributesResponse:
        """Return no search attributes: nobody searches."""
        return ListSearchAttributesResponse()

    def get_workflow_handle(self, *_: Any, **__: Any) -> Any:
        return self.workflow
