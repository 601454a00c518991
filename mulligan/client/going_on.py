"""What features have to say before a run goes on from another one, and what the new run gets of it."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import Client, WorkflowExecutionDescription

from mulligan.features import parts
from mulligan.once import OnceCall
from mulligan.values import Message


async def check_going_on(client: Client, described: WorkflowExecutionDescription) -> None:
    """Check that a run may go on from another one now.

    Raises:
        ResumeError: it may not, as while that is being undone (UndoOpenError).
        RPCError: Temporal does not answer.
    """
    for part in parts("client"):
        if hasattr(part, "CHECK_GOING_ON"):
            await part.CHECK_GOING_ON(client, described)


async def what_still_holds(
    client: Client,
    described: WorkflowExecutionDescription,
    once: Sequence[OnceCall],
    messages: Sequence[Message],
    before: int | None = None,
) -> tuple[list[OnceCall], list[Message]]:
    """The calls of tools with `once`, and the messages, of a run as another one gets them whose tools run.

    `before`: the step before which that one begins; None: it goes on from all of them.

    Raises:
        ResumeError: as `check_going_on`; or it cannot be read.
        RPCError: Temporal does not answer.
    """
    for part in parts("client"):
        if hasattr(part, "WHAT_STILL_HOLDS"):
            once, messages = await part.WHAT_STILL_HOLDS(client, described, once, messages, before)
    return [*once], [*messages]
