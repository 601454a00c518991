"""Answer a message of a conversation again: start a run that begins as the run did that answered it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan.client.origins.carry_over import carry_over, check_origin
from mulligan.client.origins.chained_run import ChainedRun, begin_from, request_digest
from mulligan.client.start_run import Handle
from mulligan.client.store_content import store_content
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.start_input import StartInput


async def branch_run(
    client: Client, workflow_id: str, run_input: StartInput, options: Mapping[str, Any], new_id: str
) -> Handle:
    """Start a branch of a conversation: a run with the messages, and the calls of tools with `once`, that a run began with.

    What the run itself has done is no part of the branch, and is not undone. A worker is needed only
    where the run continues one that was undone.

    `run_input`: of that run. `options`: the fields that are other ones in the branch: `prompt`, `metadata`,
    `client_instructions`, `user`. None: the run's.

    Raises:
        WorkflowAlreadyStartedError: there is a run with this id.
        ResumeError: the run, or the one that it continues, is being undone (UndoOpenError), or no worker says what
            is undone.
        InvalidRunInputError: the branch's input is invalid, or too large.
        RPCError: Temporal does not answer.
    """
    described = await client.get_workflow_handle(workflow_id).describe()

    async def prepared() -> StartInput:
        await check_origin(client, described)
        given = {name: value for name, value in options.items() if value is not None}
        branch, before = run_input.with_fields(traceparent=None, **given), run_input.carried.origin
        if before is not None and before.kind == "resume":
            branch = branch.with_fields(
                origin=before.model_copy(update={"request": request_digest(options), "key": ""})
            )
            earlier = await ChainedRun.read(client, before.workflow_id, before.run_id)
            if earlier is not None:
                branch = await carry_over(client, earlier.description, branch, run_input.messages)
        return await store_content(branch)

    begun = await begin_from(client, new_id, prepared, described.task_queue)
    if isinstance(begun, ChainedRun):
        raise WorkflowAlreadyStartedError(new_id, AGENT_WORKFLOW)
    return begun.handle
