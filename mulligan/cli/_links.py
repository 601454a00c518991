"""Prints links to a run: its page in Temporal's UI, and its trace in Jaeger's UI."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mulligan.cli._terminal import print_progress

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle


async def print_links(client: Client, workflow_id: str, run_id: str | None, trace_id: str | None) -> None:
    """Print the run's links on stderr: to the UIs that are set, to Temporal Cloud, or to UIs that answer on this machine."""
    from mulligan.trace_view.ui_links import jaeger_link, temporal_link

    for name, url in (
        (
            "temporal",
            await temporal_link(client.service_client.config.target_host, client.namespace, workflow_id, run_id),
        ),
        ("trace", await jaeger_link(trace_id) if trace_id else None),
    ):
        if url:
            print_progress(f"{name:<8}  {url}")


async def print_links_of_run(client: Client, handle: WorkflowHandle[Any, Any], trace_id: str | None = None) -> None:
    """Print the links of an existing run. Without a `trace_id` the trace is read from its history."""
    from mulligan.client.first_payload import UnreadableError
    from mulligan.trace_view.trace_id import read_trace_id

    with suppress(UnreadableError):
        trace_id = trace_id or await read_trace_id(client, handle)
    await print_links(client, handle.id, (await handle.describe()).run_id, trace_id)
