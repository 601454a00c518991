"""Why Temporal does not answer a worker."""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError


async def connection_error(client: Client) -> str:
    """Ask the server, for at most 2 s. Returns why it does not answer; "" if it does."""
    try:
        await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=timedelta(seconds=2), retry=False)
    except RPCError as error:
        return f"Temporal does not answer: {error.status.name}"
    return ""
