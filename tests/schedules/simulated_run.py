"""One execution of AgentWorkflow without a server: the SDK's own workflow code, and the activations of one order of events."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import (
    InitializeWorkflow,
    NotifyHasPatch,
    QueryWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner

from mulligan.testing._activities import PAYLOADS, RUN_ID
from mulligan.testing._workflow_details import instance_details
from mulligan.workflows.agent_workflow import AgentWorkflow

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BYTES_OF_ACTIVATION = 1_000
_LOOP = asyncio.new_event_loop()
_DEFINITION = workflow._Definition.must_from_class(AgentWorkflow)


class ActivationFailedError(Exception):
    """An activation failed: on a server, the workflow task would fail again and again."""


@dataclass
class Recorded:
    """An activation that was handled, as a history would have it."""

    activation: WorkflowActivation
    commands: list[Any]
    flags: list[int]
    refused: frozenset[str]
    """The updates that a validator refused: no history has them."""


@dataclass
class Segment:
    """One run of the chain that continue-as-new makes: a workflow instance with a history of its own."""

    workflow_id: str
    number: int
    arguments: Sequence[Payload]
    caller: str | None = None
    memo: Mapping[str, Payload] = field(default_factory=dict)
    recorded: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._instance = self._create()
        self._queries = 0

    def start_job(self) -> WorkflowActivationJob:
        """The job that starts it."""
        start = InitializeWorkflow(
            workflow_type=_DEFINITION.name or "",
            workflow_id=self.workflow_id,
            arguments=self.arguments,
            randomness_seed=7,
            first_execution_run_id=RUN_ID,
            attempt=1,
        )
        return WorkflowActivationJob(initialize_workflow=start)

    def activate(self, jobs: Sequence[WorkflowActivationJob], now: datetime, *, suggests_new: bool) -> list[Any]:
        """Deliver events together; returns the workflow's commands.

        Raises:
            ActivationFailedError: the workflow's code raised an error that fails a workflow task.
        """
        number = len(self.recorded) + 1
        activation = WorkflowActivation(
            run_id=f"{RUN_ID}-{self.number}",
            jobs=jobs,
            history_length=4 * number,
            history_size_bytes=BYTES_OF_ACTIVATION * number,
            continue_as_new_suggested=suggests_new,
        )
        activation.timestamp.FromDatetime(now)
        completion = _activate(self._instance, activation)
        commands = list(completion.successful.commands)
        answers = [each.update_response for each in commands if each.HasField("update_response")]
        accepted = {each.protocol_instance_id for each in answers if each.HasField("accepted")}
        sent = {job.do_update.protocol_instance_id for job in jobs if job.HasField("do_update")}
        refused = frozenset(sent - accepted)
        flags = list(completion.successful.used_internal_flags)
        self.recorded.append(Recorded(activation, commands, flags, refused))
        return commands

    def query(self, name: str, *arguments: Any, instance: Any = None) -> Any:
        """The JSON answer of a query."""
        self._queries += 1
        query = QueryWorkflow(query_id=str(self._queries), query_type=name, arguments=PAYLOADS.to_payloads(arguments))
        last = self.recorded[-1].activation
        activation = WorkflowActivation(
            run_id=last.run_id,
            jobs=[WorkflowActivationJob(query_workflow=query)],
            timestamp=last.timestamp,
            history_length=last.history_length,
            history_size_bytes=last.history_size_bytes,
        )
        [command] = _activate(instance or self._instance, activation).successful.commands
        if command.respond_to_query.HasField("failed"):
            raise ActivationFailedError(f"query {name}: {command.respond_to_query.failed.message}")
        return command.respond_to_query.succeeded.response

    def replay(self, live_from: int) -> tuple[str | None, Any]:
        """Rebuild the run as a worker does after its cache has lost it; from activation `live_from` on, it is not a replay.

        Returns what differed from the first time, and the new instance.
        """
        instance = self._create()
        for index, each in enumerate(self.recorded):
            activation = WorkflowActivation()
            activation.CopyFrom(each.activation)
            is_replay = activation.is_replaying = index < live_from
            if is_replay:
                _as_replayed(activation, each)
            kept = [one for one in each.commands if not is_replay or not _refuses(one, each.refused)]
            if not activation.jobs:  # it had nothing but refused updates, so no history has it
                if kept:
                    return f"activation {index} only refused an update, and had the commands {kept}", instance
                continue
            commands = list(_activate(instance, activation).successful.commands)
            if commands != kept:
                return f"activation {index} was replayed as {commands}, the first time it was {kept}", instance
        return None, instance

    def _create(self) -> Any:
        details = instance_details(_DEFINITION, self.workflow_id, BEGIN, caller=self.caller, memo=dict(self.memo))
        info = dataclasses.replace(
            details.info,
            run_id=f"{RUN_ID}-{self.number}",
            continued_run_id=f"{RUN_ID}-{self.number - 1}" if self.number else None,
        )
        # An instance is made on a running loop, and is then a loop of its own, which must run in a thread without one.
        asyncio._set_running_loop(_LOOP)
        try:
            return UnsandboxedWorkflowRunner().create_instance(dataclasses.replace(details, info=info))
        finally:
            asyncio._set_running_loop(None)

    def close(self, instance: Any = None) -> None:
        """End what the instance has left to do, as a worker does when it removes a run from its cache."""
        job = WorkflowActivationJob()
        job.remove_from_cache.SetInParent()
        (instance or self._instance).activate(WorkflowActivation(run_id=f"{RUN_ID}-{self.number}", jobs=[job]))


def _as_replayed(activation: WorkflowActivation, recorded: Recorded) -> None:
    """Change an activation to what Temporal's Core SDK sends in a replay."""
    jobs = [job for job in activation.jobs if job.do_update.protocol_instance_id not in recorded.refused]
    for job in jobs:
        if job.HasField("do_update"):
            job.do_update.run_validator = False
    patches = [each.set_patch_marker.patch_id for each in recorded.commands if each.HasField("set_patch_marker")]
    marks = [WorkflowActivationJob(notify_has_patch=NotifyHasPatch(patch_id=each)) for each in patches]
    kept = [*marks, *jobs] if jobs else []
    del activation.jobs[:]
    activation.jobs.extend(kept)
    activation.available_internal_flags.extend(recorded.flags)


def _refuses(command: Any, refused: frozenset[str]) -> bool:
    return bool(command.HasField("update_response") and command.update_response.protocol_instance_id in refused)


def _activate(instance: Any, activation: WorkflowActivation) -> WorkflowActivationCompletion:
    completion: WorkflowActivationCompletion = instance.activate(activation)
    if completion.HasField("failed"):
        failure = completion.failed.failure
        raise ActivationFailedError(f"{failure.message}\n{failure.stack_trace}")
    return completion


def json_of(payload: Payload) -> Any:
    """A payload's JSON value."""
    return json.loads(payload.data) if payload.data else None
