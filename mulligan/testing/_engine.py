"""A workflow run without a server: the SDK's own workflow code, fed by hand with what a server would send it.

It is what Temporal's worker does between its core and a workflow (`temporalio.worker.WorkflowInstance`): activations in,
commands out. Activities are the real ones, in the SDK's `ActivityEnvironment`. Nothing waits: retries come at once, and
timers fire when nothing else is left to do.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import (
    FireTimer,
    InitializeWorkflow,
    QueryWorkflow,
    ResolveActivity,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError
from temporalio.common import Priority, RetryPolicy, TypedSearchAttributes
from temporalio.exceptions import ApplicationError, TimeoutError, TimeoutType
from temporalio.testing import ActivityEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstanceDetails

from mulligan.client import data_converter

NAMESPACE, TASK_QUEUE, RUN_ID = "testing", "agents", "run"
MOST_ATTEMPTS = 20
"""Attempts of an activity whose policy sets no limit: what fails so often in a test would fail for ever."""
_IGNORED = {"set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties"}

PAYLOADS = data_converter.payload_converter


class Engine:
    """One execution of a workflow."""

    def __init__(self, kind: type, activities: Sequence[Callable[..., Any]], workflow_id: str) -> None:
        self._definition = workflow._Definition.must_from_class(kind)
        self._activities: Mapping[str, Callable[..., Any]] = {
            str(activity._Definition.must_from_callable(each).name): each for each in activities
        }
        self._workflow_id = workflow_id
        self._now = datetime.now(UTC)
        self._open: dict[asyncio.Task[ActivityResolution], int] = {}
        self._timers: dict[int, datetime] = {}
        self._numbers = itertools.count()
        self._result: Payload | None = None
        self._failure: BaseException | None = None
        self._is_over = False
        self._turn = asyncio.Lock()
        # The workflow has an event loop of its own, so it runs in a thread that has none.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="workflow")
        self._instance = UnsandboxedWorkflowRunner().create_instance(self._details())

    async def run(self, *arguments: Any) -> Any:
        """Run to the end; the result as plain JSON values.

        Raises:
            WorkflowFailureError: the workflow failed: as a client of a server would see it.
            RuntimeError: its code raised what fails a workflow task, or it does what only a server can.
        """
        start = InitializeWorkflow(
            workflow_type=self._definition.name or "",
            workflow_id=self._workflow_id,
            arguments=PAYLOADS.to_payloads(arguments),
            randomness_seed=7,
            first_execution_run_id=RUN_ID,
            attempt=1,
        )
        try:
            await self._activate(WorkflowActivationJob(initialize_workflow=start))
            while not self._is_over:
                await self._next()
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
        if self._failure is not None:
            raise WorkflowFailureError(cause=self._failure)
        return PAYLOADS.from_payload(self._result) if self._result is not None else None

    async def query(self, name: str, *arguments: Any, result_type: Any = None, **_: Any) -> Any:
        """Ask a query of the workflow, as it runs or after its end.

        Raises:
            WorkflowQueryFailedError: it has no such query, or that raised.
        """
        number = str(next(self._numbers))
        asked = QueryWorkflow(query_id=number, query_type=name, arguments=PAYLOADS.to_payloads(arguments))
        for command in await self._answered(WorkflowActivationJob(query_workflow=asked)):
            if command.HasField("respond_to_query"):
                answer = command.respond_to_query
                if answer.HasField("failed"):
                    raise WorkflowQueryFailedError(answer.failed.message)
                return PAYLOADS.from_payload(answer.succeeded.response, result_type)
        raise RuntimeError(f"The workflow did not answer the query {name!r}.")

    def close(self) -> None:
        """End the workflow's thread."""
        self._thread.shutdown(wait=False)

    async def _next(self) -> None:
        """Tell the workflow of the next thing that is done: an activity, or else the next timer."""
        if self._open:
            done, _ = await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            # One at a time, in the order in which they were started: the same run each time.
            task = min(done, key=lambda each: self._open[each])
            # One that was cancelled as it was scheduled has never begun.
            result = _cancelled() if task.cancelled() else task.result()
            resolved = ResolveActivity(seq=self._open.pop(task), result=result)
            await self._activate(WorkflowActivationJob(resolve_activity=resolved))
        elif self._timers:
            number = min(self._timers, key=lambda each: self._timers[each])
            self._now = max(self._now, self._timers.pop(number))
            await self._activate(WorkflowActivationJob(fire_timer=FireTimer(seq=number)))
        else:
            raise RuntimeError("The workflow waits for what never comes: a signal, an update, a person.")

    async def _activate(self, job: WorkflowActivationJob) -> None:
        for command in await self._answered(job):
            self._obey(command)

    async def _answered(self, job: WorkflowActivationJob) -> Sequence[Any]:
        activation = WorkflowActivation(run_id=RUN_ID, jobs=[job])
        activation.timestamp.FromDatetime(self._now)
        async with self._turn:
            completion = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._instance.activate, activation
            )
        if completion.HasField("failed"):
            failure = completion.failed.failure
            raise RuntimeError(
                f"The workflow's code raised what fails a workflow task: {failure.message}\n{failure.stack_trace}"
            )
        return completion.successful.commands

    def _obey(self, command: Any) -> None:
        kind = command.WhichOneof("variant")
        match kind:
            case "schedule_activity" | "schedule_local_activity":
                order = getattr(command, kind)
                is_local = kind == "schedule_local_activity"
                self._open[asyncio.create_task(self._run_activity(order, is_local=is_local))] = order.seq
            case "request_cancel_activity" | "request_cancel_local_activity":
                for task, number in self._open.items():
                    if number == getattr(command, kind).seq:
                        task.cancel()
            case "start_timer":
                waits = command.start_timer.start_to_fire_timeout.ToTimedelta()
                self._timers[command.start_timer.seq] = self._now + waits
            case "cancel_timer":
                self._timers.pop(command.cancel_timer.seq, None)
            case "complete_workflow_execution":
                self._is_over, self._result = True, command.complete_workflow_execution.result
            case "fail_workflow_execution":
                failure = command.fail_workflow_execution.failure
                self._is_over = True
                self._failure = data_converter.failure_converter.from_failure(failure, PAYLOADS)
            case _ if kind not in _IGNORED:
                raise RuntimeError(f"Without a server there is no {kind}: test this one on the embedded server.")

    async def _run_activity(self, order: Any, *, is_local: bool) -> ActivityResolution:
        """Attempts, by the order's retry policy, until one succeeds."""
        policy = RetryPolicy.from_proto(order.retry_policy)
        attempt, failure = 0, Failure()
        beats: list[Any] = []
        while attempt < (policy.maximum_attempts or MOST_ATTEMPTS):
            attempt += 1
            try:
                value = await self._attempt(order, attempt, beats, is_local=is_local)
            except asyncio.CancelledError:
                return _cancelled()
            except Exception as error:  # noqa: BLE001 - what a server would be told
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
        failed.activity_failure_info.activity_type.name = order.activity_type
        return resolution

    async def _attempt(self, order: Any, attempt: int, beats: list[Any], *, is_local: bool) -> Any:
        function = self._activities.get(order.activity_type)
        if function is None:
            raise ApplicationError(f"There is no activity {order.activity_type!r}.", non_retryable=True)
        limit = order.start_to_close_timeout.ToTimedelta()
        environment = ActivityEnvironment(client=_Client(self))  # type: ignore[arg-type]
        environment.payload_converter = PAYLOADS
        environment.on_heartbeat = lambda *details: beats.__setitem__(slice(None), details)
        environment.info = dataclasses.replace(
            environment.info,
            activity_id=str(order.seq),
            activity_type=order.activity_type,
            attempt=attempt,
            heartbeat_details=list(beats),
            heartbeat_timeout=None if is_local else order.heartbeat_timeout.ToTimedelta() or None,
            is_local=is_local,
            namespace=NAMESPACE,
            start_to_close_timeout=limit,
            task_queue=getattr(order, "task_queue", "") or TASK_QUEUE,
            workflow_id=self._workflow_id,
            workflow_namespace=NAMESPACE,
            workflow_run_id=RUN_ID,
            workflow_type=self._definition.name or "",
        )
        hints = activity._Definition.must_from_callable(function).arg_types
        arguments = PAYLOADS.from_payloads(order.arguments, hints)
        try:
            async with asyncio.timeout(limit.total_seconds() or None) as whole:
                return await environment.run(function, *arguments)
        except builtins.TimeoutError:
            if not whole.expired():
                raise  # the activity's own
            raise TimeoutError(
                "activity StartToClose timeout", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]
            ) from None

    def _details(self) -> WorkflowInstanceDetails:
        info = workflow.Info(
            attempt=1,
            continued_run_id=None,
            cron_schedule=None,
            execution_timeout=None,
            first_execution_run_id=RUN_ID,
            headers={},
            namespace=NAMESPACE,
            original_execution_run_id=RUN_ID,
            parent=None,
            root=None,
            priority=Priority.default,
            raw_memo={},
            retry_policy=None,
            run_id=RUN_ID,
            run_timeout=None,
            search_attributes={},
            start_time=self._now,
            workflow_start_time=self._now,
            task_queue=TASK_QUEUE,
            task_timeout=timedelta(seconds=10),
            typed_search_attributes=TypedSearchAttributes.empty,
            workflow_id=self._workflow_id,
            workflow_type=self._definition.name or "",
        )
        return WorkflowInstanceDetails(
            payload_converter_factory=lambda: PAYLOADS,
            failure_converter_class=data_converter.failure_converter_class,
            interceptor_classes=[],
            defn=self._definition,
            info=info,
            randomness_seed=random.Random(7).randint(0, 2**32),  # noqa: S311 - the same each time
            # Asked before a local activity: whether the worker has it. `_attempt` says so itself.
            extern_functions={"__temporal_assert_local_activity_valid": lambda _: None},
            disable_eager_activity_execution=False,
            worker_level_failure_exception_types=[],
            patch_activation_callback=None,
            last_completion_result=Payloads(),
            last_failure=None,
        )


def _cancelled() -> ActivityResolution:
    resolution = ActivityResolution()
    resolution.cancelled.failure.canceled_failure_info.SetInParent()
    return resolution


@dataclasses.dataclass(frozen=True)
class _Client:
    """What activities ask of a client: their own workflow, for queries."""

    engine: Engine

    def get_workflow_handle(self, *_: Any, **__: Any) -> Engine:
        """The one workflow that there is."""
        return self.engine
