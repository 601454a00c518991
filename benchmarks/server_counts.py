"""What Temporal's server counts: requests, actions as Temporal Cloud bills them, and requests to its database.

The server's own metrics have all three, in self-hosted servers too: `action` counts what Temporal Cloud bills
(https://docs.temporal.io/cloud/migrate/estimate-actions).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from mulligan.devserver import DevServer, temporal_server
from tests.support.ports import free_ports

UNTIL_COUNTED = 2.5
"""Seconds until the server's metrics have what has happened; it reports them once a second."""
_LINE = re.compile(r"(action|service_requests|persistence_requests)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_OF_THE_SERVER = frozenset({"GetTaskQueueUserData", "GetTaskQueue", "UpdateTaskQueue"})
"""What it reads again from time to time, whatever runs do."""
_WAITS_FOR_A_RESULT = frozenset({"PollWorkflowExecutionHistory", "GetWorkflowExecutionHistory"})
"""What the benchmark itself asks until a run has ended."""


@dataclass
class Counts:
    """Counts by kind: of actions, of requests to the server by the name of the call, and of requests to its database."""

    actions: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    database: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, metrics: str) -> Counts:
        """Read the server's metrics in Prometheus' format. What the server does for itself is left out."""
        counts = cls()
        for line in metrics.splitlines():
            if (match := _LINE.match(line)) is None:
                continue
            labels, value = dict(_LABEL.findall(match[2])), int(float(match[3]))
            if labels["namespace"] != "default" or labels["operation"] in _OF_THE_SERVER:
                continue
            if match[1] == "persistence_requests":
                counts.database[labels["operation"]] += value
            elif labels["service_name"] == "frontend":
                if match[1] == "action":
                    counts.actions[labels["action_type"]] += value
                else:
                    counts.requests[labels["operation"]] += value
        return counts

    def since(self, before: Counts, without: Iterable[str] = _WAITS_FOR_A_RESULT) -> dict[str, dict[str, int]]:
        """The counts after `before`, but for the requests `without`; as JSON."""
        counted = {
            "actions": self.actions - before.actions,
            "requests": self.requests - before.requests,
            "database": self.database - before.database,
        }
        for name in without:
            counted["requests"].pop(name, None)
        return {kind: dict(sorted(each.items())) for kind, each in counted.items()}


class ServerCounts:
    """The counts of a running server, from the port of its metrics."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def now(self) -> Counts:
        """The counts of all that has happened so far."""
        await asyncio.sleep(UNTIL_COUNTED)
        async with httpx2.AsyncClient(timeout=30) as http:
            return Counts.read((await http.get(self._url)).text)


@asynccontextmanager
async def counted_server(**settings: Any) -> AsyncIterator[tuple[DevServer, ServerCounts]]:
    """A dev server that counts. `settings`: as of `temporal_server`."""
    port = free_ports(1)[0]
    async with temporal_server(**settings, options=["--metrics-port", str(port)]) as server:
        yield server, ServerCounts(port)
