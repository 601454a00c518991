"""What a deploy with Worker Versioning does at the server."""

from __future__ import annotations

import asyncio

from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode


async def make_current(client: Client, deployment: str, build: str) -> None:
    """Like `temporal worker deployment set-current-version`, as soon as the server knows the version from its worker."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment, build_id=build
    )
    while True:
        try:
            await client.workflow_service.set_worker_deployment_current_version(request, retry=True)
            return
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                raise
            await asyncio.sleep(0.2)
