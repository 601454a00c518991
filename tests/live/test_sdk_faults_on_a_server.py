"""What is wrong in temporalio, seen in temporalio alone on a real server. A test that fails here says that a workaround is no
longer needed. Each test names the file in mulligan/worker/sdk_workarounds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.converter import PayloadCodec
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowInstance, WorkflowInstanceDetails

from mulligan import connect
from mulligan.devserver import DevServer
from tests.support.temporal import connect_to

pytestmark = pytest.mark.sdk

REMOVED = SearchAttributeKey.for_keyword("NobodyHasRegisteredThis")


@activity.defn
async def work() -> int:
    return 1


@workflow.defn(sandboxed=False)
class Waiting:
    """Runs an activity of another task queue, if one is given, and waits."""

    def __init__(self) -> None:
        self.number = 0
        self.ended = False

    @workflow.run
    async def run(self, task_queue: str) -> None:
        if task_queue:
            limit = timedelta(seconds=60)
            self.number = await workflow.execute_activity(work, task_queue=task_queue, schedule_to_close_timeout=limit)
        await workflow.wait_condition(lambda: self.ended)

    @workflow.signal
    def end(self) -> None:
        self.ended = True

    @workflow.signal
    def count(self) -> None:
        self.number += 1

    @workflow.query
    def progress(self) -> int:
        return self.number


@workflow.defn(sandboxed=False)
class SetsAttribute:
    @workflow.run
    async def run(self) -> None:
        workflow.upsert_search_attributes([REMOVED.value_set("x")])
        await workflow.wait_condition(lambda: False)


class Watched(UnsandboxedWorkflowRunner):
    """Notes the activations that the SDK sends."""

    def __init__(self) -> None:
        self.activations: list[WorkflowActivation] = []

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def noted(act: WorkflowActivation) -> Any:
            copied = WorkflowActivation()
            copied.CopyFrom(act)
            self.activations.append(copied)
            return activate(act)

        instance.activate = noted  # type: ignore[method-assign]
        return instance


@asynccontextmanager
async def worker(client: Client, queue: str, **options: Any) -> AsyncIterator[Watched]:
    """A worker of temporalio, without Mulligan."""
    runner = Watched()
    kinds: dict[str, Any] = {"workflows": [Waiting, SetsAttribute], "unsandboxed_workflow_runner": runner}
    async with Worker(client, task_queue=queue, build_id="b", **({**kinds, **options})):
        yield runner


@pytest.fixture
async def client(temporal: DevServer) -> Client:
    return await connect_to(temporal)


async def until(check: Callable[[], Any]) -> None:
    while not check():
        await asyncio.sleep(0.02)


async def failed_tasks(handle: WorkflowHandle[Any, Any]) -> list[Any]:
    kind = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    return [event async for event in handle.fetch_history_events() if event.event_type == kind]


class BadKey(PayloadCodec):
    """A codec that lacks the key for what it decodes."""

    async def encode(self, payloads: Iterable[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        raise ValueError("no such key")


async def test_a_payload_that_the_codec_cannot_decode_fails_the_workflow_task(client: Client) -> None:
    """unreadable_payloads.py"""
    queue = uuid.uuid4().hex
    handle = await client.start_workflow(Waiting.run, "", id=queue, task_queue=queue)
    converter = dataclasses.replace(client.data_converter, payload_codec=BadKey())
    config: dict[str, Any] = {**client.config(), "data_converter": converter}
    without_key = Client(**config)
    async with worker(without_key, queue):
        while not await failed_tasks(handle):
            await asyncio.sleep(0.1)
    assert (await handle.describe()).status is not None
    assert [event.workflow_task_failed_event_attributes.failure.message for event in await failed_tasks(handle)] != []
    await handle.terminate()


async def test_the_sdk_does_not_say_why_the_server_refuses_a_task(client: Client) -> None:
    """refused_attributes.py"""
    queue = uuid.uuid4().hex
    handle = await client.start_workflow(SetsAttribute.run, id=queue, task_queue=queue)
    async with worker(client, queue) as seen:

        def removals() -> list[RemoveFromCache]:
            jobs = [job for act in seen.activations for job in act.jobs]
            return [job.remove_from_cache for job in jobs if job.HasField("remove_from_cache")]

        await until(removals)
        await handle.terminate()
    assert removals()[0].reason == RemoveFromCache.EvictionReason.FATAL
    assert REMOVED.name not in removals()[0].message


def unrecorded(activations: Iterable[WorkflowActivation]) -> list[WorkflowActivation]:
    """Those with new events of a run, but of no new workflow task: the same time, and the same size of the history."""
    tasks: dict[str, tuple[int, int, int]] = {}
    found = []
    for act in activations:
        if not all(job.HasField("query_workflow") or job.HasField("remove_from_cache") for job in act.jobs):
            task = act.timestamp.ToNanoseconds(), act.history_size_bytes, act.history_length
            before = tasks.get(act.run_id)
            if before and not act.is_replaying and before[:2] == task[:2] and before[2] < task[2]:
                found.append(act)
            tasks[act.run_id] = task
    return found


async def test_a_query_delivers_events_that_no_workflow_task_has_recorded(client: Client) -> None:
    """recorded_state.py. The server chooses which of the two a worker gets first, a query or a workflow task."""
    queue = uuid.uuid4().hex
    async with worker(client, queue):
        handles = [
            await client.start_workflow(Waiting.run, f"{queue}-a", id=f"{queue}-{number}", task_queue=queue)
            for number in range(20)
        ]
        for handle in handles:
            while not (await handle.describe()).raw_description.pending_activities:
                await asyncio.sleep(0.02)
    queries = [asyncio.create_task(handle.query(Waiting.progress)) for handle in handles]
    async with Worker(client, task_queue=f"{queue}-a", activities=[work], build_id="b"):
        for handle in handles:
            while not (await handle.describe()).raw_description.HasField("pending_workflow_task"):
                await asyncio.sleep(0.02)
    async with worker(
        await connect(client.service_client.config.target_host, namespace=client.namespace), queue
    ) as seen:
        answers = await asyncio.gather(*queries)
    assert unrecorded(seen.activations) != []
    assert 1 in answers, "the query has shown a result that no workflow task had recorded"
    for handle in handles:
        await handle.terminate()
