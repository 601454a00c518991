"""What is carried from a run into another one that goes on from it, and what features have to say before that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription

from mulligan.client.origins.run_state import ResumeError
from mulligan.client.unless_missing import unless_missing
from mulligan.errors import InvalidRunInputError
from mulligan.features import installed
from mulligan.values import Message
from mulligan.wire.start_input import Carried, StartInput

GoesOn = Callable[..., Awaitable[tuple[Carried, Sequence[Message]]]]
"""What a feature does before a run goes on from another one: a function of (client, description, carried, messages) and
`step`, as `carry_over` has them, that returns what is carried, and the messages, as a run gets them whose tools run. It adds
to `carried.undos` how often that run was undone; with `only_checks`, it does no more than that.

Raises:
    ResumeError: no run may go on from that one, as while it is being undone (UndoOpenError); or it cannot be read.
    RPCError: Temporal does not answer.
"""


async def _adapted(
    client: Client,
    described: WorkflowExecutionDescription,
    carried: Carried,
    messages: Sequence[Message],
    **options: Any,
) -> tuple[Carried, Sequence[Message]]:
    carried = carried.model_copy(update={"undos": 0})
    for goes_on in installed("goes_on").values():
        carried, messages = await goes_on(client, described, carried, messages, **options)
    return carried, messages


async def check_origin(client: Client, described: WorkflowExecutionDescription) -> int:
    """Check that a run may go on from another one now. Returns how often that was undone.

    Raises:
        ResumeError, RPCError: as of `GoesOn`.
    """
    carried, _ = await _adapted(client, described, Carried(), (), only_checks=True)
    return carried.undos or 0


async def check_unchanged(client: Client, run_input: StartInput) -> None:
    """Check, when a run opens, that the run from which it goes on was not undone since its input was made.

    An undo looks for runs that resume it when it begins, and refuses without `--yes`. As each looks after it was started,
    at least one of them sees the other.

    Raises:
        InvalidRunInputError: it was undone, or is being undone.
        RPCError: Temporal does not answer.
    """
    origin, known = run_input.carried.origin, run_input.carried.undos
    if origin is None or known is None:
        return
    handle = client.get_workflow_handle(origin.workflow_id, run_id=origin.run_id)
    if (described := await unless_missing(handle.describe())) is None:
        return
    try:
        undos = await check_origin(client, described)
    except ResumeError as error:
        raise InvalidRunInputError(str(error)) from None
    if undos != known:
        raise InvalidRunInputError(
            f"The run {origin.workflow_id!r}, or one before it, was undone while this one was started, so that it would "
            "go on from what is no longer there; start it again (a fork whose id you chose: under another id)."
        )


async def carry_over(
    client: Client,
    described: WorkflowExecutionDescription,
    run_input: StartInput,
    messages: Sequence[Message],
    step: int | None = None,
) -> StartInput:
    """The input of a run, whose tools run, with these messages of another run, and what it carries of that one.

    `run_input`: with `carried` as that run has it. `step`: before which the run begins; None: it goes on from all steps.

    Raises:
        ResumeError, RPCError: as of `GoesOn`.
    """
    carried, messages = await _adapted(client, described, run_input.carried, messages, step=step)
    return run_input.with_fields(carried=carried, messages=[*messages])
