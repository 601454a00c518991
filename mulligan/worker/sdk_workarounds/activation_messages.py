"""The messages between the Core SDK and a workflow, for code that runs a workflow without a server.

The SDK has no public names for them (temporalio 1.35.0; no upstream issue known).
"""

from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    FireTimer,
    InitializeWorkflow,
    QueryWorkflow,
    ResolveActivity,
    ResolveChildWorkflowExecution,
    ResolveChildWorkflowExecutionStart,
    ResolveSignalExternalWorkflow,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

__all__ = [
    "ActivityResolution",
    "CancelWorkflow",
    "DoUpdate",
    "FireTimer",
    "InitializeWorkflow",
    "QueryWorkflow",
    "ResolveActivity",
    "ResolveChildWorkflowExecution",
    "ResolveChildWorkflowExecutionStart",
    "ResolveSignalExternalWorkflow",
    "SignalWorkflow",
    "WorkflowActivation",
    "WorkflowActivationCompletion",
    "WorkflowActivationJob",
]
