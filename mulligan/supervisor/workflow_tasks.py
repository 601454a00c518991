"""Fails a workflow task that a dead process had in flight, so that the server sends it to another one at once.

The SDK shows no program the tokens of workflow tasks, so the token is made here, in the format of Temporal's server
(`temporal.server.api.token.v1.Task`). This is safe: the server compares the token with the workflow task that it waits
for, and refuses it if that one has been completed, has timed out, or is another attempt. The format is first checked against
a token of the server itself; with another format, the server's own timeout of workflow tasks, 10 s, applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType, QueryResultType, TaskQueueKind, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    RespondQueryTaskCompletedRequest,
    RespondWorkflowTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

SECONDS_TO_POLL = timedelta(seconds=3)
"""The server answers a poll shortly before this; it accepts no shorter time than two seconds."""

_TEXT, _NUMBER = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_FIELDS = {
    "namespace_id": (1, _TEXT),
    "workflow_id": (2, _TEXT),
    "run_id": (3, _TEXT),
    "scheduled_event_id": (4, _NUMBER),
    "attempt": (5, _NUMBER),
    "started_event_id": (10, _NUMBER),
    "version": (11, _NUMBER),
}


def _token_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="mulligan/task_token.proto", package="mulligan", syntax="proto3")
    message = file.message_type.add(name="TaskToken")
    for name, (number, kind) in _FIELDS.items():
        message.field.add(name=name, number=number, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mulligan.TaskToken"))


_Token = _token_class()


@dataclass(frozen=True)
class Run:
    """One run of a workflow."""

    workflow_id: str
    run_id: str


@dataclass(frozen=True)
class TokenFormat:
    """What the server's tokens have in common, if they have the format that is known here."""

    namespace_id: str

    @staticmethod
    def of(data: bytes, run: Run) -> TokenFormat | None:
        """Read the format from the token of an activity of the run; None if it has another format."""
        try:
            token = _Token.FromString(data)
        except DecodeError:
            return None
        if (token.workflow_id, token.run_id) != (run.workflow_id, run.run_id) or not token.namespace_id:
            return None
        return TokenFormat(token.namespace_id)


@dataclass(frozen=True)
class StartedTask:
    """A workflow task that a worker has."""

    scheduled_event_id: int
    started_event_id: int
    attempt: int
    version: int
    identity: str
    """Of the worker; "" if the history does not have it."""


def started_task(last_events: Iterable[HistoryEvent], attempt: int) -> StartedTask | None:
    """The workflow task that is in flight.

    `last_events`: of the run's history, the last one first; `attempt`: the server's count.

    The history has the events of a task's first attempt. Those of later attempts, and of tasks that only deliver an update,
    are written when the task is completed: their ids follow the last one.
    """
    last = next(iter(last_events), None)
    if last is None:
        return None
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
        started = last.workflow_task_started_event_attributes
        return StartedTask(started.scheduled_event_id, last.event_id, attempt, last.version, started.identity)
    return StartedTask(last.event_id + 1, last.event_id + 2, attempt, last.version, "")


def sticky_queue(last_events: Iterable[HistoryEvent]) -> TaskQueue | None:
    """The queue of one worker in which the run's workflow task waits; None if it waits in no such queue."""
    last = next(iter(last_events), None)
    if last is None or last.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
        return None
    queue = last.workflow_task_scheduled_event_attributes.task_queue
    return queue if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY else None


async def fail_task_of_dead_process(
    client: Client, token_format: TokenFormat, run: Run, task: StartedTask, *, failure: Failure
) -> object:
    """Fail a workflow task that a dead process has.

    Raises:
        RPCError: the server refuses, most often because it does not wait for this task any more.
    """
    token = _Token(
        namespace_id=token_format.namespace_id,
        workflow_id=run.workflow_id,
        run_id=run.run_id,
        scheduled_event_id=task.scheduled_event_id,
        attempt=task.attempt,
        started_event_id=task.started_event_id,
        version=task.version,
    )
    return await _fail(client, token.SerializeToString(), failure)


async def fail_queued_task(client: Client, queue: TaskQueue, *, failure: Failure) -> bool:
    """Take a task that waits in a dead worker's own queue, and fail it: the server then sends it to any worker.

    Returns whether there was one. A query that waits there is refused: its caller asks again.
    """
    service = client.workflow_service
    request = PollWorkflowTaskQueueRequest(
        namespace=client.namespace, task_queue=queue, identity=client.service_client.config.identity
    )
    try:
        task = await service.poll_workflow_task_queue(request, timeout=SECONDS_TO_POLL)
    except RPCError:
        return False
    if not task.task_token:
        return False
    if task.HasField("query"):
        refusal = RespondQueryTaskCompletedRequest(
            namespace=client.namespace,
            task_token=task.task_token,
            completed_type=QueryResultType.QUERY_RESULT_TYPE_FAILED,
            error_message=failure.message,
        )
        await service.respond_query_task_completed(refusal, retry=True, timeout=SECONDS_TO_POLL)
    else:
        await _fail(client, task.task_token, failure)
    return True


async def _fail(client: Client, token: bytes, failure: Failure) -> object:
    request = RespondWorkflowTaskFailedRequest(
        namespace=client.namespace,
        task_token=token,
        cause=WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
        failure=failure,
        identity=client.service_client.config.identity,
    )
    return await client.workflow_service.respond_workflow_task_failed(
        request, retry=True, timeout=timedelta(seconds=10)
    )
