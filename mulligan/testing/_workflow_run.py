"""One workflow run without a server: the SDK's own workflow code, with activations made here instead of by a server.

This is what Temporal's worker does between its core and a workflow (`temporalio.worker.WorkflowInstance`): activations in,
commands out. The workflow has an event loop of its own, so all of it must be called in a thread without one.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowQueryFailedError
from temporalio.worker import UnsandboxedWorkflowRunner

from mulligan.testing._activities import PAYLOADS, RUN_ID
from mulligan.testing._workflow_details import instance_details
from mulligan.worker.sdk_workarounds.activation_messages import (
    InitializeWorkflow,
    QueryWorkflow,
    WorkflowActivation,
    WorkflowActivationCompletion,
    WorkflowActivationJob,
)
from mulligan.worker.sdk_workarounds.start_arguments import join_arguments
from mulligan.worker.sdk_workarounds.temporal_definitions import workflow_definition
from mulligan.workflows.agent_workflow import AgentWorkflow

Instance = Callable[[WorkflowActivation], WorkflowActivationCompletion]
"""A workflow in a worker's cache: it handles activations."""


class WorkflowTaskFailedError(RuntimeError):
    """The workflow's code raised an error that fails a workflow task: a server would repeat the task again and again."""


@dataclass
class Recorded:
    """An activation that was handled, as a history would have it."""

    activation: WorkflowActivation
    commands: list[Any]
    flags: list[int]


@dataclass
class WorkflowRun:
    """One run of the chain that continue-as-new makes: a workflow instance with a history of its own.

    `caller`: the id of the parent workflow, if it is a child; `memo`: from the parent; `features`: of loaded modules.
    """

    kind: type
    workflow_id: str
    number: int
    arguments: Sequence[Payload]
    begin: datetime
    caller: str | None = None
    memo: Mapping[str, Payload] = field(default_factory=dict)
    features: tuple[type, ...] = ()
    recorded: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_id = f"{RUN_ID}-{self.number}" if self.number else RUN_ID
        self.definition = workflow_definition(self.kind)
        self._instance = self.create_instance()
        self._queries = 0

    def start_job(self) -> WorkflowActivationJob:
        """The job that starts it."""
        start = InitializeWorkflow(
            workflow_type=self.definition.name or "",
            workflow_id=self.workflow_id,
            arguments=self.arguments,
            randomness_seed=7,
            first_execution_run_id=RUN_ID,
            attempt=1,
        )
        return WorkflowActivationJob(initialize_workflow=start)

    def activate(self, jobs: Sequence[WorkflowActivationJob], now: datetime, **history: Any) -> list[Any]:
        """Deliver events together; returns the workflow's commands. `history`: fields of the activation that describe it.

        Raises:
            WorkflowTaskFailedError: the workflow's code raised an error that fails a workflow task.
        """
        activation = WorkflowActivation(run_id=self.run_id, jobs=jobs, **history)
        activation.timestamp.FromDatetime(now)
        if issubclass(self.kind, AgentWorkflow):
            join_arguments(activation)
        completion = activate(self._instance, activation).successful
        commands = list(completion.commands)
        self.recorded.append(Recorded(activation, commands, list(completion.used_internal_flags)))
        return commands

    def query(self, name: str, *arguments: Any, instance: Instance | None = None) -> Payload:
        """The answer of a query, while it runs or after its end.

        Raises:
            WorkflowQueryFailedError: it has no such query, or the query raised.
        """
        self._queries += 1
        query = QueryWorkflow(query_id=str(self._queries), query_type=name, arguments=PAYLOADS.to_payloads(arguments))
        activation = WorkflowActivation()
        activation.CopyFrom(self.recorded[-1].activation)
        del activation.jobs[:]
        activation.jobs.append(WorkflowActivationJob(query_workflow=query))
        [command] = activate(instance or self._instance, activation).successful.commands
        if command.respond_to_query.HasField("failed"):
            raise WorkflowQueryFailedError(command.respond_to_query.failed.message)
        return command.respond_to_query.succeeded.response

    def create_instance(self) -> Instance:
        """A new instance, which has handled nothing."""
        details = instance_details(
            self.definition,
            self.workflow_id,
            self.begin,
            caller=self.caller,
            memo=dict(self.memo),
            features=self.features,
        )
        before = (f"{RUN_ID}-{self.number - 1}" if self.number > 1 else RUN_ID) if self.number else None
        info = dataclasses.replace(details.info, run_id=self.run_id, continued_run_id=before)

        async def create() -> Instance:  # the SDK needs a running event loop
            return UnsandboxedWorkflowRunner().create_instance(dataclasses.replace(details, info=info)).activate

        return asyncio.run(create())

    def close(self, instance: Instance | None = None) -> None:
        """End what the instance has left to do, as a worker does when it removes a run from its cache."""
        job = WorkflowActivationJob()
        job.remove_from_cache.SetInParent()
        (instance or self._instance)(WorkflowActivation(run_id=self.run_id, jobs=[job]))


def activate(instance: Instance, activation: WorkflowActivation) -> WorkflowActivationCompletion:
    """Deliver an activation to an instance.

    Raises:
        WorkflowTaskFailedError: the workflow's code raised an error that fails a workflow task.
    """
    completion = instance(activation)
    if completion.HasField("failed"):
        failure = completion.failed.failure
        raise WorkflowTaskFailedError(
            f"The workflow's code raised an error that fails a workflow task: {failure.message}\n{failure.stack_trace}"
        )
    return completion
