"""One Temporal dev server for all processes that run the tests, with a namespace for each of them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from mulligan import connect
from mulligan.devserver import DevServer, temporal_server
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES

SECONDS_TO_START = 90
SECONDS_TO_STOP = 20


class SharedServer:
    """A dev server on an event loop in a thread, for processes without a loop, such as pytest's controlling process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="temporal", daemon=True)
        self._server = temporal_server()

    def start(self) -> DevServer:
        """Start it. It ends with this process, however that ends."""
        self._thread.start()
        with pytest.MonkeyPatch.context() as patch:
            # On one core Go hands over no work between threads, which takes a quarter of the server's CPU time.
            patch.setenv("GOMAXPROCS", "1")
            return asyncio.run_coroutine_threadsafe(self._server.__aenter__(), self._loop).result(SECONDS_TO_START)

    def stop(self) -> None:
        """Stop it."""
        ending = asyncio.run_coroutine_threadsafe(self._server.__aexit__(None, None, None), self._loop)
        ending.result(SECONDS_TO_STOP)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_TO_STOP)
        self._loop.close()


async def own_namespace(address: str, name: str) -> DevServer:
    """A new namespace on a running server, whose task queues, ids and lists are not shared."""
    client = await Client.connect(address)
    kept = Duration()
    kept.FromTimedelta(timedelta(days=1))
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=kept)
    await client.workflow_service.register_namespace(request, retry=True)
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    attributes = {each.name: keyword for each in SEARCH_ATTRIBUTES}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=name, search_attributes=attributes), retry=True
    )
    return DevServer(address, name, ui_url=None)


async def end_open_runs(server: DevServer) -> None:
    """Terminate what tests have left open: commands and pages that ask each open run would wait for those without a worker."""
    client = await connect_to(server)
    async for run in client.list_workflows("ExecutionStatus = 'Running'"):
        with suppress(RPCError):  # it has ended since
            await client.get_workflow_handle(run.id).terminate()


async def connect_to(server: DevServer) -> Client:
    """A client like those of users, in this process's namespace of the server."""
    return await connect(server.address, namespace=server.namespace)


def environment_of(server: DevServer) -> dict[str, str]:
    """The environment with which a command or a worker process uses the same namespace."""
    return {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": server.namespace}
