"""Where to look at a run: its page in Temporal's UI, its trace in Jaeger's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from mulligan.cli import _terminal

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

_CLOUD = (".tmprl.cloud", ".api.temporal.io")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]", "::1"}
_SECONDS_TO_ANSWER = 0.3


async def say_links(client: Client, workflow_id: str, run_id: str | None, trace_id: str | None) -> None:
    """On stderr, the links that lead somewhere: to what is set, to Temporal Cloud, or to what answers on this machine."""
    for name, url in (
        (
            "temporal",
            await temporal_link(client.service_client.config.target_host, client.namespace, workflow_id, run_id),
        ),
        ("trace", await jaeger_link(trace_id) if trace_id else None),
    ):
        if url:
            _terminal.say(f"{name:<8}  {url}")


async def say_links_of(client: Client, handle: WorkflowHandle[Any, Any], trace_id: str | None = None) -> None:
    """The same for a run that was looked up; its trace is in history, if an agent was opened."""
    from mulligan.trace_view.history import trace_of
    from mulligan.trace_view.history_events import Unreadable

    try:
        traceparent = "" if trace_id else await trace_of(client, handle)
    except Unreadable:
        traceparent = ""
    run_id = (await handle.describe()).run_id
    await say_links(client, handle.id, run_id, trace_id or (traceparent.split("-")[1] if traceparent else None))


async def temporal_link(server: str, namespace: str, workflow_id: str, run_id: str | None) -> str | None:
    """The run's page in the UI of the Temporal server at the address `server`."""
    from mulligan.client.settings import settings

    ui = settings().temporal_ui_url
    address = urlsplit(f"//{server.rpartition('//')[2]}")
    host, port = address.hostname or "", address.port or 7233
    if not ui and host.endswith(_CLOUD):
        ui = "https://cloud.temporal.io"
    # Temporal's dev server has its UI a thousand ports above, and so has deploy/compose.yaml.
    if not ui and host in _LOOPBACK and await _answers(host, port + 1000):
        ui = f"http://localhost:{port + 1000}"
    if not ui:
        return None
    page = f"{ui}/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
    return f"{page}/{run_id}/history" if run_id else page


async def jaeger_link(trace_id: str) -> str | None:
    """The trace in Jaeger's UI."""
    from mulligan.client.settings import settings
    from mulligan.trace_view.jaeger import DEFAULT_URL, without_secrets

    url = settings().jaeger_url
    if not url:
        usual = urlsplit(DEFAULT_URL)
        if not await _answers(usual.hostname or "", usual.port or 0):
            return None
        url = DEFAULT_URL
    return f"{without_secrets(url)}/trace/{trace_id}"


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_SECONDS_TO_ANSWER):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError, OverflowError):
        return False
    writer.close()
    return True
