"""What a deploy with Worker Versioning does at the server."""

from __future__ import annotations

import asyncio

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    SetWorkerDeploymentCurrentVersionRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
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


async def pin(client: Client, deployment: str, workflow_id: str, build: str) -> None:
    """Like `temporal workflow update-options --versioning-override-behavior pinned`."""
    override = VersioningOverride(
        pinned=VersioningOverride.PinnedOverride(
            behavior=VersioningOverride.PINNED_OVERRIDE_BEHAVIOR_PINNED,
            version=WorkerDeploymentVersion(deployment_name=deployment, build_id=build),
        )
    )
    await client.workflow_service.update_workflow_execution_options(
        UpdateWorkflowExecutionOptionsRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            workflow_execution_options=WorkflowExecutionOptions(versioning_override=override),
            update_mask=FieldMask(paths=["versioning_override"]),
        ),
        retry=True,
    )
