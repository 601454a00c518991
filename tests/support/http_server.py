"""The HTTP server of `mulligan serve`, on a real socket of this process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import uvicorn

from mulligan.serve.connections import Connections
from mulligan.serve.create_app import create_app
from mulligan.wire.run_status import is_open

SECONDS = 300
"""Until a client gives up. That ends a request that hangs: beside other tests any answer may take long."""


@dataclass
class Frame:
    """One server-sent event, as a client reads it."""

    id: str | None
    event: str
    data: Any


def by(token: str) -> dict[str, str]:
    """The headers of a caller with a token."""
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Door:
    """A running server, and a client of it."""

    url: str
    http: httpx2.AsyncClient
    tokens: dict[str, str] = field(default_factory=dict)

    def by(self, name: str) -> dict[str, str]:
        """The headers of a caller."""
        return by(self.tokens[name])

    async def ended(self, run_id: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What the server says of a run when that has ended, however long it takes."""
        while True:
            answer = await self.http.get(f"/api/runs/{run_id}?wait=20", headers=headers)
            assert answer.status_code == 200, answer.text
            info: dict[str, Any] = answer.json()
            if not is_open(info["status"]):
                return info

    async def frames(self, run_id: str, since: str = "", **headers: str) -> AsyncIterator[Frame]:
        """The events of a run as a stream; comments are left out."""
        sent = {"Accept": "text/event-stream", **({"Last-Event-ID": since} if since else {}), **headers}
        async with self.http.stream("GET", f"/api/runs/{run_id}/events", headers=sent) as response:
            assert response.status_code == 200, (await response.aread()).decode()
            assert response.headers["content-type"].startswith("text/event-stream")
            frame = Frame(None, "message", None)
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    frame.id = value
                elif name == "event":
                    frame.event = value
                elif name == "data":
                    frame.data = json.loads(value)
                elif not line and frame.data is not None:
                    yield frame
                    frame = Frame(None, "message", None)


class _Server(uvicorn.Server):
    """A server that leaves signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_server(
    client: Any,
    *,
    wrap: Callable[[Any], Any] = lambda application: application,
    connections: Connections | None = None,
    **options: Any,
) -> AsyncIterator[Door]:
    """Serve while the block runs. `wrap`: middleware around the application. `options`: those of `create_app`."""
    application = wrap(create_app(client=client, **{"tokens": "", **options}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = (connections or Connections(1_000)).config(application, timeout_graceful_shutdown=2)
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=SECONDS) as http:
                entries = [entry.split(":") for entry in options.get("tokens", "").split(",") if entry]
                yield Door(url, http, {name: token for name, token, *_ in entries})
        finally:
            server.should_exit = True
            await task
