"""Ends what a cancelled run has started elsewhere, by a workflow that outlives the run (clean_up_workflow.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import FailureError

from mulligan.wire.clean_up_request import CLEAN_UP, CleanUp
from mulligan.wire.run_context import RunContext
from mulligan.workflows import limits

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent


def is_run_cancelled() -> bool:
    """Whether somebody has cancelled the workflow, for whatever reason."""
    return workflow.cancellation_reason() is not None


def clean_up_id(run_id: str, name: str, context: RunContext) -> str:
    """The id of the workflow. `name`: a part of it that is unique in the conversation."""
    # A call's id is unique in its conversation only, and a run's id may be used again.
    name = f"{name}.{context.conversation}.{context.trace.split('-')[1][:16]}"
    return f"{run_id}/{name}".encode()[-limits.WORKFLOW_ID_BYTES :].decode(errors="ignore")


async def clean_up(
    agent: RunningAgent, activity: str, request: BaseModel, *, name: str, summary: str, queue: str | None = None
) -> None:
    """Leave an activity to a workflow of its own, which outlives the run.

    Args:
        agent: The agent whose run it is.
        activity: The activity's type.
        request: Its input.
        name: A part of the workflow's id, unique in the conversation.
        summary: What Temporal's UI shows of it.
        queue: The activity's own task queue, if it has one.
    """
    start = CleanUp(activity=activity, request=request.model_dump(mode="json"), queue=queue, summary=summary)
    workflow_id = clean_up_id(workflow.info().workflow_id, name, agent.context)
    try:
        await workflow.start_child_workflow(
            CLEAN_UP,
            start,
            id=workflow_id,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            priority=agent.route.priority,
            static_summary=summary,
        )
    except FailureError:
        workflow.logger.warning("%s could not be started.", summary)
