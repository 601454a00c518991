"""Clients of Temporal whose calls fail where a test says so: the server has carried them out, or has never had them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput
from temporalio.service import RPCError, RPCStatusCode

from mulligan.wire.run_context import AGENT_WORKFLOW

__all__ = ["Faults", "unavailable", "with_faults"]


def unavailable() -> Exception:
    """What a call raises whose connection breaks off."""
    return RPCError("transport error", RPCStatusCode.UNAVAILABLE, b"")


@dataclass
class Faults(Interceptor):
    """The faults that a client meets in its calls.

    `lose_starts`: how many starts of runs are carried out without an answer. `hold_start`: the next start waits for this
    event before it is sent. `fail_call`: the number of the call after the next start that fails, with what `error` makes.
    """

    lose_starts: int = 0
    hold_start: asyncio.Event | None = None
    is_held: asyncio.Event = field(default_factory=asyncio.Event)
    fail_call: int = 0
    error: Callable[[], Exception] = unavailable
    has_started: bool = False
    workflow: str = AGENT_WORKFLOW
    """The type of the workflows whose starts are meant."""
    starts: list[str] = field(default_factory=list)
    """The ids of the runs that were started, or tried to start."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        return _Faulty(next, self)

    def count(self) -> None:
        """Count a call after the start, and fail if it is the one."""
        if not self.has_started or not self.fail_call:
            return
        self.fail_call -= 1
        if not self.fail_call:
            raise self.error()


class _Faulty(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, faults: Faults) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._faults = faults

    async def start_workflow(self, input: StartWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
        faults = self._faults
        if input.workflow != faults.workflow:
            return await super().start_workflow(input)
        faults.starts.append(input.id)
        held, faults.hold_start = faults.hold_start, None
        if held is not None:
            faults.is_held.set()
            await held.wait()
        handle = await super().start_workflow(input)
        faults.has_started = True
        if faults.lose_starts:
            faults.lose_starts -= 1
            raise unavailable()
        return handle

    async def describe_workflow(self, input: Any) -> Any:  # noqa: A002 - Temporal's name
        self._faults.count()
        return await super().describe_workflow(input)

    async def query_workflow(self, input: Any) -> Any:  # noqa: A002 - Temporal's name
        self._faults.count()
        return await super().query_workflow(input)

    def fetch_workflow_history_events(self, input: Any) -> Any:  # noqa: A002 - Temporal's name
        self._faults.count()
        return super().fetch_workflow_history_events(input)

    def list_workflows(self, input: Any) -> Any:  # noqa: A002 - Temporal's name
        self._faults.count()
        return super().list_workflows(input)


def with_faults(client: Client, faults: Interceptor) -> Client:
    """The same client, whose calls fail as `faults` says."""
    config = client.config()
    config["interceptors"] = [*config["interceptors"], faults]
    return Client(**config)
