"""What is wrong in temporalio, seen in temporalio alone. A test that fails here says that a workaround is no longer needed.

Each test names the file in mulligan/worker/sdk_workarounds. Faults that need a server are in tests/live/test_sdk_faults_on_a_server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from mulligan.testing._workflow_details import instance_details
from mulligan.worker.sdk_workarounds.activation_messages import (
    ActivityResolution,
    InitializeWorkflow,
    ResolveActivity,
    WorkflowActivation,
    WorkflowActivationJob,
)
from mulligan.worker.sdk_workarounds.temporal_definitions import workflow_definition

pytestmark = pytest.mark.sdk

NUMBER = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
UNREADABLE = Payload(metadata={"encoding": b"of another program"}, data=b"1")


@workflow.defn
class Waiting:
    """Runs an activity; notes the signals that arrive."""

    def __init__(self) -> None:
        self.stopped = False

    @workflow.run
    async def run(self, number: Any) -> Any:
        return await workflow.execute_activity("work", number, start_to_close_timeout=timedelta(seconds=9))

    @workflow.signal
    def stop(self, reason: Any) -> None:
        self.stopped = True

    @workflow.query
    def is_stopped(self) -> bool:
        return self.stopped


class Instance:
    """A workflow of temporalio without Mulligan's workarounds."""

    def __init__(self) -> None:
        details = instance_details(workflow_definition(Waiting), "w", datetime.now(UTC), caller=None, memo={})

        async def create() -> Any:  # the SDK needs a running event loop
            return UnsandboxedWorkflowRunner().create_instance(details)

        self._instance = asyncio.run(create())
        self.thread = ThreadPoolExecutor(1)

    def send(self, **job: Any) -> Any:
        """Send it an activation; returns what came of it."""
        activation = WorkflowActivation(run_id="run", jobs=[WorkflowActivationJob(**job)])
        activation.timestamp.FromDatetime(datetime.now(UTC))
        return self.thread.submit(self._instance.activate, activation).result()

    def start(self, *arguments: Payload) -> Any:
        return self.send(
            initialize_workflow=InitializeWorkflow(
                workflow_type="Waiting", workflow_id="w", arguments=arguments, attempt=1
            )
        )


@pytest.fixture
def instance() -> Iterator[Instance]:
    instance = Instance()
    yield instance
    job = WorkflowActivationJob()
    job.remove_from_cache.SetInParent()
    instance.send(remove_from_cache=job.remove_from_cache)
    instance.thread.shutdown()


@pytest.mark.parametrize("arguments", [(NUMBER, NUMBER), (NUMBER, UNREADABLE)], ids=["too many", "unreadable"])
def test_several_arguments_fail_the_workflow_task(instance: Instance, arguments: tuple[Payload, ...]) -> None:
    """start_arguments.py"""
    assert not Instance().start(NUMBER).HasField("failed")
    assert instance.start(*arguments).HasField("failed")


def test_unreadable_details_of_a_failure_fail_the_workflow_task(instance: Instance) -> None:
    """readable_failures.py"""
    assert not instance.start(NUMBER).HasField("failed")
    result = ActivityResolution()
    result.failed.failure.activity_failure_info.SetInParent()
    result.failed.failure.cause.application_failure_info.details.payloads.append(UNREADABLE)
    failed = instance.send(resolve_activity=ResolveActivity(seq=1, result=result))
    assert failed.HasField("failed")
    assert failed.failed.failure.message


def test_a_signal_with_too_many_arguments_fails_the_workflow_task(instance: Instance) -> None:
    """readable_signals.py"""
    instance.start(NUMBER)
    signal = WorkflowActivationJob()
    signal.signal_workflow.signal_name = "stop"
    signal.signal_workflow.input.extend([NUMBER, NUMBER])
    assert instance.send(signal_workflow=signal.signal_workflow).HasField("failed")


@pytest.mark.parametrize(
    ("content", "arrives"), [(NUMBER, b"true"), (UNREADABLE, b"false")], ids=["good", "unreadable"]
)
def test_a_signal_whose_content_cannot_be_read_never_arrives(
    instance: Instance, content: Payload, arrives: bytes
) -> None:
    """readable_signals.py"""
    instance.start(NUMBER)
    job = WorkflowActivationJob()
    job.signal_workflow.signal_name = "stop"
    job.signal_workflow.input.append(content)
    assert not instance.send(signal_workflow=job.signal_workflow).HasField("failed")
    asked = WorkflowActivationJob()
    asked.query_workflow.query_id, asked.query_workflow.query_type = "q", "is_stopped"
    [answer] = instance.send(query_workflow=asked.query_workflow).successful.commands
    assert answer.respond_to_query.succeeded.response.data == arrives


def public_names(thing: object, *words: str) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_") and any(word in name for word in words)}


def test_there_is_no_public_way_to_evict_a_run_or_to_wait_for_a_shutdown() -> None:
    """workflow_cache.py, until_shutdown.py"""
    assert public_names(Worker, "evict", "cache", "shutdown") == {"is_shutdown", "shutdown"}


def test_there_is_no_public_way_to_ask_for_a_definition() -> None:
    """temporal_definitions.py"""
    assert public_names(workflow, "definition") | public_names(activity, "definition") == set()


def test_there_is_no_public_name_for_the_messages_of_an_activation() -> None:
    """activation_messages.py"""
    import temporalio.worker

    assert public_names(temporalio.worker, "WorkflowActivation", "Resolution", "Job") == set()


def test_workflow_tasks_have_no_data_converter_of_their_own() -> None:
    """unreadable_payloads.py"""
    from temporalio.worker import WorkerConfig

    assert {name for name in WorkerConfig.__annotations__ if "convert" in name} == set()
