"""Workflows that outlive a deploy, where Worker Versioning is in use."""

from __future__ import annotations

import logging

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflow.v1 import VersioningOverride as VersioningOverrideMessage
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client
from temporalio.common import AutoUpgradeVersioningOverride, VersioningOverride
from temporalio.service import RPCError

from mulligan.client.settings import settings

_log = logging.getLogger(__name__)


def unpinned() -> VersioningOverride | None:
    """How to start a workflow that all versions of the workers use: it moves to the current one. None: no versioning.

    A workflow's declaration cannot say so: the server refuses it from workers without a version.
    """
    return AutoUpgradeVersioningOverride() if settings().build_id else None


async def unpin(client: Client, workflow_id: str, run_id: str) -> None:
    """Let an open workflow move to the current version, where its caller had no option for that.

    A failure is logged: the workflow then stays on its version, as runs do.
    """
    if not settings().build_id:
        return
    request = UpdateWorkflowExecutionOptionsRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        workflow_execution_options=WorkflowExecutionOptions(
            versioning_override=VersioningOverrideMessage(auto_upgrade=True)
        ),
        update_mask=FieldMask(paths=["versioning_override"]),
    )
    try:
        await client.workflow_service.update_workflow_execution_options(request, retry=True)
    except RPCError as error:
        _log.warning("The workflow %s stays on this version of the worker: %s", workflow_id, error.message)
