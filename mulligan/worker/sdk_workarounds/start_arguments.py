"""A run that is started with several arguments: its workflow gets one payload that says how many there were.

The SDK decodes several arguments without the workflow's type hints, before any code of the workflow runs. If that fails, or
the workflow has another number of parameters, the workflow task fails, again and again.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from mulligan.workflows.agent_workflow import several_arguments

__all__ = ["with_one_argument"]

_Activate = Callable[[WorkflowActivation], WorkflowActivationCompletion]


def with_one_argument(activate: _Activate) -> _Activate:
    """The `activate` of an instance of AgentWorkflow, which then has at most one argument."""

    def activate_with_one_argument(act: WorkflowActivation) -> WorkflowActivationCompletion:
        for job in act.jobs:
            if job.HasField("initialize_workflow") and (count := len(job.initialize_workflow.arguments)) > 1:
                del job.initialize_workflow.arguments[:]
                job.initialize_workflow.arguments.append(several_arguments(count))
        return activate(act)

    return activate_with_one_argument
