"""pytest fixtures for runs on the embedded Temporal server: `pytest_plugins = ["mulligan.testing.plugin"]` in a conftest.py.

Server, client and workers share an event loop in a thread of their own. So sync and async tests can use them, with any
async plugin and any loop scope.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client

from mulligan.agent import Agent
from mulligan.client.connect import connect
from mulligan.devserver import DevServer, temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.run_input import RunInput
from mulligan.script import Script
from mulligan.testing.model import ScriptedModel
from mulligan.testing.run import (
    AgentRun,
    check_is_scripted,
    check_models,
    check_turns,
    load_under_test,
    make_run_input,
    read_agent_run,
    reset_models,
)
from mulligan.values import OutputT

T = TypeVar("T")


class AgentsOnTemporal:
    """Runs agents on the embedded server, each run with its own worker."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self._loop = loop

    def run(
        self, agent: Agent[OutputT] | str | PathLike[str], prompt: str | RunInput, **options: Any
    ) -> AgentRun[OutputT]:
        """Like `mulligan.testing.run_agent`, but on a real server; for a sync test."""
        return _run_in(self._run(agent, prompt, **options), self._loop)

    def run_async(
        self, agent: Agent[OutputT] | str | PathLike[str], prompt: str | RunInput, **options: Any
    ) -> Awaitable[AgentRun[OutputT]]:
        """Like `run`, for an `async def` test."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run(agent, prompt, **options), self._loop))

    async def _run(  # noqa: PLR0913 - as `run_agent`
        self,
        agent: Agent[OutputT] | str | PathLike[str],
        prompt: str | RunInput,
        *,
        model: ScriptedModel,
        others: Sequence[Agent] = (),
        load: Sequence[str] = (),
        scripts: Sequence[Script] = (),
        sub_agents: Mapping[str, Script] | None = None,
        resources: object = None,
        **run_input: Any,
    ) -> AgentRun[OutputT]:
        from mulligan.worker.wiring import running_worker

        check_is_scripted(model)
        queue = f"test-{uuid.uuid4().hex[:8]}"
        spans, models = InMemorySpanExporter(), [model, *scripts, *(sub_agents or {}).values()]
        telemetry = Telemetry(SimpleSpanProcessor(spans), content=True, exports=False)
        under_test, loaded = await load_under_test(agent, others, [model, *scripts], sub_agents, resources, load)
        run_input_model = make_run_input(under_test, prompt, model, run_input)
        reset_models(models)
        try:
            async with running_worker(self.client, loaded, telemetry, queue):
                handle = await self.client.start_workflow("AgentWorkflow", run_input_model, id=queue, task_queue=queue)

                async def query(run_id: str | None, name: str, *arguments: Any) -> Any:
                    workflow_run = self.client.get_workflow_handle(queue, run_id=run_id)
                    return await workflow_run.query(name, args=arguments)

                run = await read_agent_run(under_test, handle.result(), query, spans)
        except Exception:
            check_turns(models)
            raise
        check_models(models, run)
        return run


@pytest.fixture(scope="session")
def mulligan_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of the server, the client and the workers."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mulligan_loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def mulligan_server(mulligan_loop: asyncio.AbstractEventLoop) -> Iterator[DevServer]:
    """An embedded Temporal server for the session. On a new machine it is downloaded or built first, which takes minutes.

    The server at TEMPORAL_ADDRESS is never used: tests must not run there.
    """
    server = temporal_server(progress=lambda line: print(line, file=sys.stderr))
    running = _run_in(server.__aenter__(), mulligan_loop)
    try:
        yield running
    finally:
        _run_in(server.__aexit__(None, None, None), mulligan_loop)


@pytest.fixture(scope="session")
def agents_on_temporal(mulligan_server: DevServer, mulligan_loop: asyncio.AbstractEventLoop) -> AgentsOnTemporal:
    """Runs agents on the embedded server."""
    return AgentsOnTemporal(_run_in(connect(mulligan_server.address), mulligan_loop), mulligan_loop)


def _run_in(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
