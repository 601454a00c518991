"""Answer a message of a conversation again: start a run that begins as the run did that answered it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client

from mulligan.client.going_on import check_going_on, what_still_holds
from mulligan.client.resumed_run import ResumedRun, request_digest
from mulligan.client.start_run import Handle, begin_run
from mulligan.client.store_content import store_content
from mulligan.run_input import RunInput
from mulligan.wire.ui_summary import run_summary, task_of


async def branch_run(
    client: Client, workflow_id: str, run_input: RunInput, options: Mapping[str, Any], new_id: str
) -> Handle:
    """Start a branch of a conversation: a run with the messages, and the calls of tools with `once`, that a run began with.

    What the run itself has done is no part of the branch, and is not undone. A worker is needed only
    where the run continues one that was undone.

    Args:
        client: A client of the server.
        workflow_id: The run.
        run_input: Its input.
        options: The fields of the input that are other ones in the branch: `prompt`, `metadata`, `client_instructions`,
            `user`. None: the run's.
        new_id: The id of the branch.

    Raises:
        WorkflowAlreadyStartedError: there is a run with this id.
        ResumeError: the run, or the one that it continues, is being undone (UndoOpenError), or no worker says what
            is undone.
        InvalidRunInputError: the branch's input is invalid, or too large.
        RPCError: Temporal does not answer.
    """
    described = await client.get_workflow_handle(workflow_id).describe()
    await check_going_on(client, described)
    given = {name: value for name, value in options.items() if value is not None}
    before = run_input.resumed_from
    if before is not None:
        update: dict[str, Any] = {"request": request_digest(options), "key": ""}
        earlier = await ResumedRun.read(client, before.workflow_id, before.run_id)
        if earlier is not None:
            once, messages, undos = await what_still_holds(client, earlier.description, before.once, run_input.messages)
            update |= {"once": once, "undos": undos}
            given["messages"] = messages
        given["resumed_from"] = before.model_copy(update=update)
    branch = await store_content(run_input.model_copy(update={"traceparent": None, **given}))
    summary = run_summary(branch.agent, task_of(branch))
    return await begin_run(client, branch, new_id, described.task_queue, static_summary=summary)
