"""A worker that stopped polling says so at `/readyz` and on stderr; if its polls fail for good, the process exits."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.operatorservice.v1 import DeleteNamespaceRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan import connect
from mulligan.devserver import DevServer, temporal_server
from tests.support.command_server import run_command
from tests.system.test_health import probe, probed_worker, until

BRIEF_POLLS = 'matching.longPollExpirationInterval="200ms"'
KINDS = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)


async def run_worker(address: str, namespace: str, limits: dict[str, str]) -> tuple[int, list[str]]:
    """Run `mulligan worker` until it ends; return its exit code and its output."""
    settings = {"TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": namespace, "MULLIGAN_GRACE_SECONDS": "1"}
    code, _, err = await run_command("worker", env={**os.environ, **settings, **limits})
    return code, err.decode().splitlines()


async def pollers(client: Client) -> list[int]:
    """The numbers of workers that poll for workflow and activity tasks; zero while the server does not know the namespace."""
    queue = TaskQueue(name="agents")
    asked = [
        DescribeTaskQueueRequest(namespace=client.namespace, task_queue=queue, task_queue_type=kind) for kind in KINDS
    ]
    try:
        return [len((await client.workflow_service.describe_task_queue(each)).pollers) for each in asked]
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return []


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[DevServer]:
    """One whose polls are brief, as those of workers that are told to end wait for their end."""
    async with temporal_server(dynamic_config=[BRIEF_POLLS]) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
async def worker_of_a_deleted_namespace(server: DevServer) -> AsyncIterator[asyncio.Task[tuple[int, list[str]]]]:
    """The end of a worker whose namespace is deleted. It takes temporalio a minute, in which the other tests run."""
    client = await connect(server.address)
    day = Duration(seconds=86_400)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace="brief", workflow_execution_retention_period=day)
    )
    in_it = await connect(server.address, namespace="brief")
    while await pollers(in_it) != [0, 0]:
        await asyncio.sleep(0.2)
    ended = asyncio.create_task(run_worker(server.address, "brief", {}))
    while await pollers(in_it) != [1, 1]:
        await asyncio.sleep(0.2)
    await client.operator_service.delete_namespace(DeleteNamespaceRequest(namespace="brief"))
    yield ended
    ended.cancel()
    await asyncio.wait([ended])


async def test_a_worker_whose_polls_end_without_an_error_is_not_ready(server: DevServer) -> None:
    deaf = probed_worker(server, program=["-m", "tests.support.worker_that_stops_polling"])
    async with deaf as (process, url):
        await until(url, (200, "ok"))
        process.send_signal(signal.SIGUSR1)
        kinds = ("workflow", "activity")
        reasons = [f"not polling task queue 'probed' for {kind} tasks" for kind in kinds]
        # The third one is the queue of this worker's own agents.
        reasons.append("not polling task queue 'probed#' for activity tasks")
        while (said := await probe(url, "/readyz"))[0] != 503 or reasons_in(said[1]) != reasons:
            await asyncio.sleep(0.1)
        process.terminate()
        assert await process.wait() == 0


def reasons_in(text: str) -> list[str]:
    """Why a worker is not ready, without the part of its queue's name that depends on its agents."""
    return re.sub("#~[a-z2-7]{4}", "#", text).split("; ")


@pytest.mark.parametrize("limits", [{}, {"MULLIGAN_MAX_CONCURRENT_MODEL_CALLS": "2"}], ids=["one", "two"])
async def test_a_worker_that_cannot_start_exits_with_2_and_a_sentence(
    server: DevServer, limits: dict[str, str]
) -> None:
    code, said = await run_worker(server.address, "nowhere", limits)
    assert code == 2
    [error] = (line for line in said if "WARN" not in line)
    assert re.fullmatch(
        rf"error: the Temporal server at {server.address} has no namespace 'nowhere'; set TEMPORAL_NAMESPACE .*", error
    )


async def test_a_worker_whose_polls_end_with_an_error_exits(
    worker_of_a_deleted_namespace: asyncio.Task[tuple[int, list[str]]],
) -> None:
    """temporalio retries for a minute and gives up; after that its `Worker.run()` may wait for ever."""
    code, said = await worker_of_a_deleted_namespace
    assert code == 1
    [line] = [line for line in said if line.startswith("error: ")]
    assert line.startswith("error: the worker of task queue 'agents' has stopped: Namespace brief is not found.")
    assert "Traceback" not in "".join(said)
