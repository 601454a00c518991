"""A worker that stopped polling says so at `/readyz` and on stderr; if its polls fail for good, the process exits."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.operatorservice.v1 import DeleteNamespaceRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan import connect
from mulligan.devserver import temporal_server
from tests.system.test_health import probe, probed_worker, until

BRIEF_POLLS = 'matching.longPollExpirationInterval="200ms"'
KINDS = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)


async def run_worker(address: str, namespace: str, limits: dict[str, str]) -> tuple[int, list[str]]:
    """Run `worker.py` until it ends; return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": namespace, "MULLIGAN_GRACE_SECONDS": "1"} | limits,
    )  # fmt: skip
    try:
        _, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, err.decode().splitlines()


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


async def test_a_worker_whose_polls_end_without_an_error_is_not_ready() -> None:
    async with temporal_server(dynamic_config=[BRIEF_POLLS]) as server:
        deaf = probed_worker(server, program=["-m", "tests.support.worker_that_stops_polling"])
        async with deaf as (process, url):
            await until(url, (200, "ok"))
            process.send_signal(signal.SIGUSR1)
            kinds = ("workflow", "activity")
            reasons = [f"not polling task queue 'probed' for {kind} tasks" for kind in kinds]
            while not set(reasons) <= set((await probe(url, "/readyz"))[1].split("; ")):
                await asyncio.sleep(0.1)
            code, text = await probe(url, "/readyz")
            # The third one is the queue of this worker's own agents.
            assert (code, re.sub("#~[a-z2-7]{4}", "#", text).split("; ")) == (
                503,
                [*reasons, "not polling task queue 'probed#' for activity tasks"],
            )
            process.terminate()
            assert await process.wait() == 0


@pytest.mark.parametrize("limits", [{}, {"MULLIGAN_MAX_CONCURRENT_MODEL_CALLS": "2"}], ids=["one", "two"])
async def test_a_worker_that_cannot_start_exits_with_2_and_a_sentence(limits: dict[str, str]) -> None:
    async with temporal_server() as server:
        code, said = await run_worker(server.address, "nowhere", limits)
    assert code == 2
    [error] = (line for line in said if "WARN" not in line)
    assert re.fullmatch(
        rf"error: the Temporal server at {server.address} has no namespace 'nowhere'; set TEMPORAL_NAMESPACE .*", error
    )


async def test_a_worker_whose_polls_end_with_an_error_exits() -> None:
    """temporalio retries for a minute and gives up; after that its `Worker.run()` may wait for ever."""
    async with temporal_server(dynamic_config=[BRIEF_POLLS]) as server:
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
        code, said = await ended
    assert code == 1
    [line] = [line for line in said if line.startswith("error: ")]
    assert line.startswith("error: the worker of task queue 'agents' has stopped: Namespace brief is not found.")
    assert "Traceback" not in "".join(said)
