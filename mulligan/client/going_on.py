"""What features have to say before a run goes on from another one, and what the new run gets of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from temporalio.client import Client, WorkflowExecutionDescription

from mulligan.client.run_state import ResumeError
from mulligan.client.unless_missing import unless_missing
from mulligan.errors import InvalidRunInputError
from mulligan.features import installed
from mulligan.once import OnceCall
from mulligan.run_input import RunInput
from mulligan.values import Message


class GoesOn(NamedTuple):
    """What a feature has to say before a run goes on from another one: `check` and `still_holds`, as the functions below."""

    check: Callable[..., Awaitable[int]]
    still_holds: Callable[..., Awaitable[tuple[Sequence[OnceCall], Sequence[Message], int]]]


async def check_going_on(client: Client, described: WorkflowExecutionDescription) -> int:
    """Check that a run may go on from another one now. Returns how often that was undone.

    Raises:
        ResumeError: it may not, as while that is being undone (UndoOpenError).
        RPCError: Temporal does not answer.
    """
    undos = 0
    for each in _of_features():
        undos += await each.check(client, described)
    return undos


async def check_unchanged(client: Client, run_input: RunInput) -> None:
    """Check, when a run opens, that the run from which it goes on was not undone since its input was made.

    An undo looks for runs that resume it when it begins, and refuses without `--yes`. As each looks after it was started,
    at least one of them sees the other.

    Raises:
        InvalidRunInputError: it was undone, or is being undone.
        RPCError: Temporal does not answer.
    """
    origin = run_input.resumed_from or run_input.forked_from
    if origin is None or origin.undos is None:
        return
    handle = client.get_workflow_handle(origin.workflow_id, run_id=origin.run_id)
    if (described := await unless_missing(handle.describe())) is None:
        return
    try:
        undos = await check_going_on(client, described)
    except ResumeError as error:
        raise InvalidRunInputError(str(error)) from None
    if undos != origin.undos:
        raise InvalidRunInputError(
            f"The run {origin.workflow_id!r}, or one before it, was undone while this one was started, so that it would "
            "go on from what is no longer there; start it again (a fork whose id you chose: under another id)."
        )


async def what_still_holds(
    client: Client,
    described: WorkflowExecutionDescription,
    once: Sequence[OnceCall],
    messages: Sequence[Message],
    before: int | None = None,
) -> tuple[list[OnceCall], list[Message], int]:
    """The calls of tools with `once`, and the messages, of a run as another one gets them whose tools run; and how often
    that run was undone.

    `before`: the step before which that one begins; None: it goes on from all of them.

    Raises:
        ResumeError: as `check_going_on`; or it cannot be read.
        RPCError: Temporal does not answer.
    """
    undos = 0
    for each in _of_features():
        once, messages, number = await each.still_holds(client, described, once, messages, before)
        undos += number
    return [*once], [*messages], undos


def _of_features() -> list[GoesOn]:
    return [*installed("goes_on").values()]
