"""Runs a workflow without a server: the SDK's own workflow code, with activations made here instead of by a server.

This is what Temporal's worker does between its core and a workflow (`temporalio.worker.WorkflowInstance`): activations in,
commands out. Each child workflow has an engine of its own. No time passes: a timer fires when nothing else can happen.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    FireTimer,
    InitializeWorkflow,
    QueryWorkflow,
    ResolveActivity,
    ResolveChildWorkflowExecution,
    ResolveChildWorkflowExecutionStart,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import CancelledError
from temporalio.worker import UnsandboxedWorkflowRunner

from mulligan.client.converter import data_converter
from mulligan.testing._activities import PAYLOADS, RUN_ID, Activities, cancelled
from mulligan.testing._workflow_details import instance_details
from mulligan.testing.person import PersonDriver
from mulligan.wire.clean_up_request import CLEAN_UP
from mulligan.worker.start_arguments import with_one_argument
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.clean_up_workflow import CleanUpWorkflow

_IGNORED = {"set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties"}


class Engine:
    """One execution of a workflow. `caller`: the id of the parent workflow, if it is a child; `memo`: from the parent."""

    def __init__(
        self,
        kind: type,
        activities: Sequence[Callable[..., Any]],
        workflow_id: str,
        *,
        caller: str | None = None,
        memo: Mapping[str, Payload] | None = None,
        person: PersonDriver | None = None,
    ) -> None:
        self._definition = workflow._Definition.must_from_class(kind)
        self._activities = Activities(activities, self, workflow_id, self._definition.name or "")
        self.workflow_id = workflow_id
        self._person = person
        self._updates: dict[str, asyncio.Future[Any]] = {}
        self._caller, self._memo = caller, dict(memo or {})
        self._now = datetime.now(UTC)
        self._open: dict[asyncio.Task[WorkflowActivationJob], tuple[str, int]] = {}
        """The activities and children that are not done, in the order of their start: kind and sequence number."""
        self._children: dict[int, Engine] = {}
        self._cancelling: list[asyncio.Task[None]] = []
        self._timers: dict[int, datetime] = {}
        self._numbers = itertools.count()
        self._result: Payload | None = None
        self._failure: BaseException | None = None
        self._is_over = False
        self._activation = asyncio.Lock()
        # The workflow has its own event loop, so it runs in a thread without one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="workflow")
        instance = UnsandboxedWorkflowRunner().create_instance(
            instance_details(self._definition, workflow_id, self._now, caller=caller, memo=dict(memo or {}))
        )
        is_agent_run = issubclass(kind, AgentWorkflow)
        self._activate_workflow = with_one_argument(instance.activate) if is_agent_run else instance.activate

    async def run(self, *arguments: Any) -> Any:
        """Run the workflow to its end, and return its result as JSON values.

        Raises:
            WorkflowFailureError: the workflow failed; a client of a server gets the same error.
            RuntimeError: its code raised an error that fails a workflow task, or needs a feature of the server.
        """
        start = InitializeWorkflow(
            workflow_type=self._definition.name or "",
            workflow_id=self.workflow_id,
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
            await asyncio.gather(*self._open, *self._cancelling, return_exceptions=True)
        if self._failure is not None:
            raise WorkflowFailureError(cause=self._failure)
        return PAYLOADS.from_payload(self._result) if self._result is not None else None

    async def query(self, name: str, *arguments: Any, result_type: Any = None, **_: Any) -> Any:
        """Query the workflow, while it runs or after its end.

        Raises:
            WorkflowQueryFailedError: it has no such query, or the query raised.
        """
        number = str(next(self._numbers))
        query = QueryWorkflow(query_id=number, query_type=name, arguments=PAYLOADS.to_payloads(arguments))
        for command in await self._send(WorkflowActivationJob(query_workflow=query)):
            if command.HasField("respond_to_query"):
                answer = command.respond_to_query
                if answer.HasField("failed"):
                    raise WorkflowQueryFailedError(answer.failed.message)
                return PAYLOADS.from_payload(answer.succeeded.response, result_type)
        raise RuntimeError(f"The workflow did not answer the query {name!r}.")

    async def update(self, name: str, argument: Any) -> Any:
        """Send an update, and return its result.

        Raises:
            WorkflowUpdateFailedError: it was refused.
        """
        number = str(next(self._numbers))
        result = self._updates[number] = asyncio.get_running_loop().create_future()
        update = DoUpdate(
            id=number,
            protocol_instance_id=number,
            name=name,
            input=PAYLOADS.to_payloads([argument]),
            run_validator=True,
        )
        await self._activate(WorkflowActivationJob(do_update=update))
        while not result.done():
            await self._next()
        return result.result()

    async def cancel(self) -> None:
        """Ask the workflow to cancel."""
        if not self._is_over:
            await self._activate(WorkflowActivationJob(cancel_workflow=CancelWorkflow()))

    def close(self) -> None:
        """End the workflow's thread, and those of its children."""
        self._thread.shutdown(wait=False)
        for child in self._children.values():
            child.close()

    async def _next(self) -> None:
        """Send the workflow the next event: an activity or child that is done, else a person's reply, else a timer."""
        if self._open:
            done, _ = await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            # One at a time, in the order of their start, so that each run is the same.
            task = next(each for each in self._open if each in done)
            _, number = self._open.pop(task)
            # A task that was cancelled when it was scheduled has not run.
            await self._activate(_resolved(number, cancelled()) if task.cancelled() else task.result())
        elif self._person is not None and await self._person.reply_to(self):
            return
        elif self._timers:
            number = min(self._timers, key=lambda each: self._timers[each])
            self._now = max(self._now, self._timers.pop(number))
            await self._activate(WorkflowActivationJob(fire_timer=FireTimer(seq=number)))
        else:
            raise RuntimeError(
                "The workflow waits for a signal, an update, a deferred result or a person that this test does not have."
            )

    async def _activate(self, job: WorkflowActivationJob) -> None:
        for command in await self._send(job):
            self._run_command(command)

    async def _send(self, job: WorkflowActivationJob) -> Sequence[Any]:
        activation = WorkflowActivation(run_id=RUN_ID, jobs=[job])
        activation.timestamp.FromDatetime(self._now)
        async with self._activation:
            completion = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._activate_workflow, activation
            )
        if completion.HasField("failed"):
            failure = completion.failed.failure
            raise RuntimeError(
                f"The workflow's code raised an error that fails a workflow task: {failure.message}\n{failure.stack_trace}"
            )
        return completion.successful.commands

    def _run_command(self, command: Any) -> None:
        kind = command.WhichOneof("variant")
        request = getattr(command, kind)
        match kind:
            case "schedule_activity" | "schedule_local_activity":
                is_local = kind == "schedule_local_activity"
                self._start("activity", request.seq, self._run_activity(request, is_local=is_local))
            case "request_cancel_activity" | "request_cancel_local_activity":
                self._cancel_activity(request.seq)
            case "start_child_workflow_execution":
                self._start("start", request.seq, self._start_child(request))
            case "cancel_child_workflow_execution":
                child = self._children[request.child_workflow_seq]
                self._cancelling.append(asyncio.create_task(child.cancel()))
            case "update_response":
                self._resolve_update(request)
            case "start_timer":
                self._timers[request.seq] = self._now + request.start_to_fire_timeout.ToTimedelta()
            case "cancel_timer":
                self._timers.pop(request.seq, None)
            case "complete_workflow_execution" | "fail_workflow_execution" | "cancel_workflow_execution":
                self._end(kind, request)
            case _ if kind not in _IGNORED:
                raise RuntimeError(f"Without a server there is no {kind}: test this workflow on the embedded server.")

    def _cancel_activity(self, number: int) -> None:
        for task, open_work in self._open.items():
            if open_work == ("activity", number):
                task.cancel()

    def _end(self, kind: str, request: Any) -> None:
        self._is_over = True
        if kind == "complete_workflow_execution":
            self._result = request.result
        elif kind == "fail_workflow_execution":
            self._failure = data_converter.failure_converter.from_failure(request.failure, PAYLOADS)
        else:
            self._failure = CancelledError("Workflow cancelled")

    def _resolve_update(self, response: Any) -> None:
        update = self._updates[response.protocol_instance_id]
        if response.HasField("rejected"):
            cause = data_converter.failure_converter.from_failure(response.rejected, PAYLOADS)
            update.set_exception(WorkflowUpdateFailedError(cause))
        elif response.HasField("completed"):
            update.set_result(PAYLOADS.from_payload(response.completed))

    def _start(self, kind: str, number: int, work: Coroutine[Any, Any, WorkflowActivationJob]) -> None:
        self._open[asyncio.create_task(work)] = kind, number

    async def _run_activity(self, request: Any, *, is_local: bool) -> WorkflowActivationJob:
        return _resolved(request.seq, await self._activities.run(request, is_local=is_local))

    async def _start_child(self, request: Any) -> WorkflowActivationJob:
        kinds = {"AgentWorkflow": AgentWorkflow, CLEAN_UP: CleanUpWorkflow, self._definition.name: self._definition.cls}
        kind = kinds.get(request.workflow_type)
        if kind is None:
            raise RuntimeError(
                f"Without a server there is no child workflow {request.workflow_type}: test it on the embedded server."
            )
        functions = self._activities.functions
        child = Engine(
            kind, functions, request.workflow_id, caller=self.workflow_id, memo=request.memo, person=self._person
        )
        self._children[request.seq] = child
        self._start("child", request.seq, _run_child(child, request))
        started = ResolveChildWorkflowExecutionStart(seq=request.seq)
        started.succeeded.run_id = RUN_ID
        return WorkflowActivationJob(resolve_child_workflow_execution_start=started)


def _resolved(number: int, result: ActivityResolution) -> WorkflowActivationJob:
    return WorkflowActivationJob(resolve_activity=ResolveActivity(seq=number, result=result))


async def _run_child(child: Engine, request: Any) -> WorkflowActivationJob:
    """Run a child to its end."""
    ended = ResolveChildWorkflowExecution(seq=request.seq)
    try:
        result = await child.run(*PAYLOADS.from_payloads(request.input))
    except WorkflowFailureError as error:
        kind = ended.result.cancelled if isinstance(error.cause, CancelledError) else ended.result.failed
        failure = kind.failure
        failure.message = "Child Workflow execution failed"
        failure.child_workflow_execution_failure_info.workflow_type.name = request.workflow_type
        failure.child_workflow_execution_failure_info.workflow_execution.workflow_id = request.workflow_id
        data_converter.failure_converter.to_failure(error.cause, PAYLOADS, failure.cause)
    else:
        ended.result.completed.result.CopyFrom(PAYLOADS.to_payload(result))
    return WorkflowActivationJob(resolve_child_workflow_execution=ended)
