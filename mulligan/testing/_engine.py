"""A workflow run without a server: the SDK's own workflow code, fed by hand with what a server would send it.

It is what Temporal's worker does between its core and a workflow (`temporalio.worker.WorkflowInstance`): activations in,
commands out. Child workflows are engines within it. Nothing waits: timers fire when nothing else is left to do.
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

from mulligan.client.connect import data_converter
from mulligan.testing._activities import PAYLOADS, RUN_ID, Activities, cancelled
from mulligan.testing._workflow_details import instance_details
from mulligan.testing.person import PersonDriver
from mulligan.workflows.agent_workflow import AgentWorkflow

_IGNORED = {"set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties"}


class Engine:
    """One execution of a workflow. `caller`: the one whose child it is, and what that says of it, its `memo`."""

    def __init__(
        self,
        kind: type,
        activities: Sequence[Callable[..., Any]],
        workflow_id: str,
        *,
        caller: str | None = None,
        memo: Mapping[str, Payload] | None = None,
        asking: PersonDriver | None = None,
    ) -> None:
        self._definition = workflow._Definition.must_from_class(kind)
        self._activities = Activities(activities, self, workflow_id, self._definition.name or "")
        self.workflow_id = workflow_id
        self._asking = asking
        self._updates: dict[str, asyncio.Future[Any]] = {}
        self._caller, self._memo = caller, dict(memo or {})
        self._now = datetime.now(UTC)
        self._open: dict[asyncio.Task[WorkflowActivationJob], tuple[str, int]] = {}
        """What is not done yet, in the order in which it was begun: its kind and number."""
        self._children: dict[int, Engine] = {}
        self._cancelling: list[asyncio.Task[None]] = []
        self._timers: dict[int, datetime] = {}
        self._numbers = itertools.count()
        self._result: Payload | None = None
        self._failure: BaseException | None = None
        self._is_over = False
        self._turn = asyncio.Lock()
        # The workflow has an event loop of its own, so it runs in a thread that has none.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="workflow")
        self._instance = UnsandboxedWorkflowRunner().create_instance(
            instance_details(self._definition, workflow_id, self._now, caller=caller, memo=dict(memo or {}))
        )

    async def run(self, *arguments: Any) -> Any:
        """Run to the end; the result as plain JSON values.

        Raises:
            WorkflowFailureError: the workflow failed: as a client of a server would see it.
            RuntimeError: its code raised what fails a workflow task, or it does what only a server can.
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

    async def update(self, name: str, argument: Any) -> Any:
        """Send an update; its answer.

        Raises:
            WorkflowUpdateFailedError: it was refused.
        """
        number = str(next(self._numbers))
        answer = self._updates[number] = asyncio.get_running_loop().create_future()
        asked = DoUpdate(
            id=number,
            protocol_instance_id=number,
            name=name,
            input=PAYLOADS.to_payloads([argument]),
            run_validator=True,
        )
        await self._activate(WorkflowActivationJob(do_update=asked))
        while not answer.done():
            await self._next()
        return answer.result()

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
        """Tell the workflow of the next thing that is done: an activity or a child, or else the next timer."""
        if self._open:
            done, _ = await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            # One at a time, in the order in which they were started: the same run each time.
            task = next(each for each in self._open if each in done)
            _, number = self._open.pop(task)
            # One that was cancelled as it was scheduled has never begun.
            await self._activate(_resolved(number, cancelled()) if task.cancelled() else task.result())
        elif self._asking is not None and await self._asking.ask(self):
            return
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
                self._begin("activity", order.seq, self._run_activity(order, is_local=is_local))
            case "request_cancel_activity" | "request_cancel_local_activity":
                for task, what in self._open.items():
                    if what == ("activity", getattr(command, kind).seq):
                        task.cancel()
            case "start_child_workflow_execution":
                order = command.start_child_workflow_execution
                self._begin("start", order.seq, self._start_child(order))
            case "cancel_child_workflow_execution":
                child = self._children[command.cancel_child_workflow_execution.child_workflow_seq]
                self._cancelling.append(asyncio.create_task(child.cancel()))
            case "update_response":
                self._answer(command.update_response)
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
            case "cancel_workflow_execution":
                self._is_over, self._failure = True, CancelledError("Workflow cancelled")
            case _ if kind not in _IGNORED:
                raise RuntimeError(f"Without a server there is no {kind}: test this one on the embedded server.")

    def _answer(self, response: Any) -> None:
        answer = self._updates[response.protocol_instance_id]
        if response.HasField("rejected"):
            cause = data_converter.failure_converter.from_failure(response.rejected, PAYLOADS)
            answer.set_exception(WorkflowUpdateFailedError(cause))
        elif response.HasField("completed"):
            answer.set_result(PAYLOADS.from_payload(response.completed))

    def _begin(self, kind: str, number: int, work: Coroutine[Any, Any, WorkflowActivationJob]) -> None:
        self._open[asyncio.create_task(work)] = kind, number

    async def _run_activity(self, order: Any, *, is_local: bool) -> WorkflowActivationJob:
        return _resolved(order.seq, await self._activities.run(order, is_local=is_local))

    async def _start_child(self, order: Any) -> WorkflowActivationJob:
        kinds = {"AgentWorkflow": AgentWorkflow, self._definition.name: self._definition.cls}
        kind = kinds.get(order.workflow_type)
        if kind is None:
            raise RuntimeError(
                f"Without a server there is no child {order.workflow_type}: test it on the embedded one."
            )
        functions = self._activities.functions
        about = {"caller": self.workflow_id, "memo": order.memo, "asking": self._asking}
        child = Engine(kind, functions, order.workflow_id, **about)
        self._children[order.seq] = child
        self._begin("child", order.seq, _ended(child, order))
        started = ResolveChildWorkflowExecutionStart(seq=order.seq)
        started.succeeded.run_id = RUN_ID
        return WorkflowActivationJob(resolve_child_workflow_execution_start=started)


def _resolved(number: int, result: ActivityResolution) -> WorkflowActivationJob:
    return WorkflowActivationJob(resolve_activity=ResolveActivity(seq=number, result=result))


async def _ended(child: Engine, order: Any) -> WorkflowActivationJob:
    """A child's run, to its end."""
    ended = ResolveChildWorkflowExecution(seq=order.seq)
    try:
        result = await child.run(*PAYLOADS.from_payloads(order.input))
    except WorkflowFailureError as error:
        kind = ended.result.cancelled if isinstance(error.cause, CancelledError) else ended.result.failed
        failure = kind.failure
        failure.message = "Child Workflow execution failed"
        failure.child_workflow_execution_failure_info.workflow_type.name = order.workflow_type
        failure.child_workflow_execution_failure_info.workflow_execution.workflow_id = order.workflow_id
        data_converter.failure_converter.to_failure(error.cause, PAYLOADS, failure.cause)
    else:
        ended.result.completed.result.CopyFrom(PAYLOADS.to_payload(result))
    return WorkflowActivationJob(resolve_child_workflow_execution=ended)
