"""pytest fixtures for runs on the embedded Temporal server: `pytest_plugins = ["mulligan.testing.plugin"]` in a conftest.py.

Server, client and workers have an event loop of their own, in a thread: sync tests and async ones, of any plugin and any
loop scope, use them alike.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client

from mulligan.agent import Agent
from mulligan.client import connect
from mulligan.devserver import temporal_server
from mulligan.loading import served
from mulligan.telemetry import Telemetry
from mulligan.testing.model import Model
from mulligan.testing.run import AgentRun, observed
from mulligan.values import RunInput

T = TypeVar("T")


class AgentsOnTemporal:
    """Runs agents on the embedded server, each with a worker of its own."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self._loop = loop

    def run(self, agent: Agent, prompt: str | RunInput, **options: Any) -> AgentRun:
        """As `mulligan.testing.run_agent`, on a real server; for a test that is no coroutine."""
        return asyncio.run_coroutine_threadsafe(self._run(agent, prompt, **options), self._loop).result()

    def run_async(self, agent: Agent, prompt: str | RunInput, **options: Any) -> Awaitable[AgentRun]:
        """The same for an `async def` test."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run(agent, prompt, **options), self._loop))

    async def _run(
        self, agent: Agent, prompt: str | RunInput, *, model: Model, others: Sequence[Agent] = (), **run_input: Any
    ) -> AgentRun:
        from worker import running_worker

        given = prompt if isinstance(prompt, RunInput) else RunInput(agent=agent.name, prompt=prompt, **run_input)
        given = given.model_copy(update={"agent": agent.name, "model": f"scripted:{model.name}"})
        queue = f"test-{uuid.uuid4().hex[:8]}"
        spans = InMemorySpanExporter()
        telemetry = Telemetry(SimpleSpanProcessor(spans), content=True, exports=False)
        try:
            async with running_worker(self.client, served([agent, *others], [model]), telemetry, queue):
                handle = await self.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)

                async def query(name: str, *arguments: Any) -> Any:
                    return await handle.query(name, args=arguments)

                return await observed(handle.result(), query, spans)
        finally:
            model.check()


@pytest.fixture(scope="session")
def agents_on_temporal() -> Iterator[AgentsOnTemporal]:
    """An embedded Temporal server for the session: on a new machine it is downloaded or built first, for minutes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="agents_on_temporal", daemon=True)
    thread.start()

    def do(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    server = temporal_server(progress=lambda line: print(line, file=sys.stderr))
    address = do(server.__aenter__()).address
    try:
        yield AgentsOnTemporal(do(connect(address)), loop)
    finally:
        do(server.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
