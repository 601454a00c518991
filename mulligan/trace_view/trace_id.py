"""The id of a run's trace, from the run's history: it needs the server only, no worker."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowHandle

from mulligan.client.first_payload import first_payload


async def read_trace_id(client: Client, handle: WorkflowHandle[Any, Any]) -> str:
    """The id of a run's trace; "" if no agent was opened yet. Reads history only until an activity names it.

    Raises:
        UnreadableError: the history cannot be decoded.
    """
    async for event in handle.fetch_history_events(page_size=30):
        for payloads in (
            event.activity_task_scheduled_event_attributes.input,
            event.activity_task_completed_event_attributes.result,
        ):
            if traceparent := _traceparent(await first_payload(client.data_converter, payloads)):
                return traceparent.split("-")[1]
    return ""


def _traceparent(value: Any) -> str:
    """That of the agent for which an activity works (`where.trace`), or which `open_run` has opened (`trace`)."""
    if not isinstance(value, dict):
        return ""
    where = value.get("where")
    trace = where.get("trace") if isinstance(where, dict) else value.get("trace")
    return trace if isinstance(trace, str) and trace.count("-") == 3 else ""
