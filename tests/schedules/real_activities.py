"""The real activities, each run once for the same input: the schedules differ in the order of their results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.bridge.proto.activity_result import ActivityResolution

from mulligan import Agent, Script
from mulligan.observe.telemetry import Telemetry
from mulligan.testing._activities import PAYLOADS, Activities
from mulligan.testing.run import load_for_test
from mulligan.worker.wiring import AgentActivities

_Query = Callable[..., Any]


class RealActivities:
    """The activities of the agents. A context manager; they run on the event loop of a thread."""

    def __init__(self, agents: Sequence[Agent], scripts: Sequence[Script]) -> None:
        self._agents, self._scripts = agents, scripts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="activities", daemon=True)
        self._results: dict[tuple[str, str, bytes], ActivityResolution] = {}

    def __enter__(self) -> RealActivities:
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._thread.start()
        telemetry = Telemetry(SimpleSpanProcessor(InMemorySpanExporter()), content=False, exports=False)
        self._opened = AgentActivities(load_for_test(self._agents, self._scripts), telemetry).opened()
        self._functions = self._wait(self._opened.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._opened.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def result(self, workflow_id: str, request: Any, query: _Query, *, is_local: bool) -> ActivityResolution:
        """What the server would have delivered: the result of the last attempt."""
        key = workflow_id, request.activity_type, b"\0".join(each.data for each in request.arguments)
        if key not in self._results:
            activities = Activities(self._functions, _Handle(query), workflow_id, "AgentWorkflow")
            self._results[key] = self._wait(activities.run(request, is_local=is_local))
        return self._results[key]

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class _Handle:
    """The handle of a run, for an activity that has lost its conversation."""

    def __init__(self, query: _Query) -> None:
        self._query = query

    async def query(self, name: str, *arguments: Any, result_type: Any = None, **_: Any) -> Any:
        """Ask the run. The explorer waits for the activity meanwhile, so that no event is delivered at the same time."""
        payload = await asyncio.to_thread(self._query, name, *arguments)
        return PAYLOADS.from_payload(payload, result_type)
