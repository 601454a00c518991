"""Replays the history of an ended run of `AgentWorkflow` in this process, to ask the workflow what a worker would be asked.

Nothing of a run is code of users: what an agent declared is in the history, and tools and models run in activities, which a
replay does not repeat. So any process with Mulligan can do it, and needs only the keys of an encrypted run. The exception is
a run with a feature of a loaded module: only a worker that has it can answer for such a run.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowReplayResult,
)
from temporalio.workflow import instance

from mulligan.workflows.agent_workflow import AgentWorkflow

MOST_SECONDS = 60.0
"""For one replay. A history has 51,200 events at most, and 1,000 steps take about two seconds."""
_BUILD = "mulligan"
"""Otherwise the SDK would compute a hash of all modules."""


async def replay(history: WorkflowHistory, converter: DataConverter) -> AgentWorkflow:
    """The workflow as it was when its run ended.

    Raises:
        Exception: the history cannot be replayed: it is of a version that this one does not know, or cannot be decrypted.
        TimeoutError: it takes more than `MOST_SECONDS`.
    """
    replayed_workflows: list[AgentWorkflow] = []
    replayer = Replayer(
        workflows=[AgentWorkflow],
        data_converter=converter,
        interceptors=[_Keeping(replayed_workflows)],
        build_id=_BUILD,
        debug_mode=True,  # without the limit of two seconds for a task: this process may be busy
    )
    async with asyncio.timeout(MOST_SECONDS):
        replayed: WorkflowReplayResult = await replayer.replay_workflow(history)
    assert replayed.replay_failure is None
    return replayed_workflows[0]


class _Keeping(Interceptor):
    """Keeps the workflow's object, which the SDK forgets after the replay."""

    def __init__(self, replayed_workflows: list[AgentWorkflow]) -> None:
        self._found = replayed_workflows

    def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """The interceptor of the workflow, which knows where to keep it."""
        replayed_workflows = self._found

        class Keep(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
                replayed_workflows.append(instance())
                return await super().execute_workflow(input)

        return Keep
