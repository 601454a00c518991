"""A run that is started with several arguments: its workflow gets one payload that says how many there were.

The fault: the SDK decodes several arguments without the workflow's type hints, before any code of the workflow runs. If
that fails, or the workflow has another number of parameters, the workflow task fails, again and again. The run should
fail instead.

Upstream: temporalio/sdk-python issue 608, temporalio/features issue 240 (both open). Needed with temporalio 1.35.0.
"""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation

from mulligan.workflows.agent_workflow import several_arguments


def join_arguments(act: WorkflowActivation) -> None:
    """Let an activation of an AgentWorkflow start it with at most one argument."""
    for job in act.jobs:
        if job.HasField("initialize_workflow") and (count := len(job.initialize_workflow.arguments)) > 1:
            del job.initialize_workflow.arguments[:]
            job.initialize_workflow.arguments.append(several_arguments(count))
