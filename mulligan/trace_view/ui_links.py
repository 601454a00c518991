"""Links to a run: its page in Temporal's UI, and its trace in Jaeger's UI."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, urlsplit

from mulligan.client.live_pace import is_cloud
from mulligan.client.settings import settings
from mulligan.trace_view.jaeger import DEFAULT_URL, without_secrets

_LOOPBACK = {"localhost", "127.0.0.1", "[::1]", "::1"}
_CONNECT_TIMEOUT = 0.3
"""Seconds."""


async def temporal_link(server: str, namespace: str, workflow_id: str, run_id: str | None) -> str | None:
    """The URL of the run in the UI of the Temporal server at the address `server`; None if no UI is known."""
    ui = settings().temporal_ui_url
    address = urlsplit(f"//{server.rpartition('//')[2]}")
    host, port = address.hostname or "", address.port or 7233
    if not ui and is_cloud(server):
        ui = "https://cloud.temporal.io"
    # Temporal's dev server and deploy/compose.yaml have the UI at the server's port + 1000.
    if not ui and host in _LOOPBACK and await _answers(host, port + 1000):
        ui = f"http://localhost:{port + 1000}"
    if not ui:
        return None
    page = f"{ui}/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
    return f"{page}/{run_id}/history" if run_id else page


async def jaeger_link(trace_id: str) -> str | None:
    """The URL of the trace in Jaeger's UI; None if none is set and none answers at the default URL."""
    url = settings().jaeger_url
    if not url:
        default = urlsplit(DEFAULT_URL)
        if not await _answers(default.hostname or "", default.port or 0):
            return None
        url = DEFAULT_URL
    return f"{without_secrets(url)}/trace/{trace_id}"


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError, OverflowError):
        return False
    writer.close()
    return True
