"""The undos of a run, and what they have undone: for the next undo, and for runs that go on from the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from mulligan.client.find_runs import memo_of
from mulligan.client.origins.chained_run import ChainedRun
from mulligan.client.origins.run_state import NoWorkerError, ResumeError, UndoOpenError, first_run_id
from mulligan.client.read_run import NO_WORKER_STATUSES, query_run
from mulligan.client.unless_missing import unless_missing
from mulligan.values import Message, UserMessage
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.start_input import Carried
from mulligan.wire.undo import UNDO_MEMO, UNDO_QUERY, UNDO_WORKFLOW, CallToUndo, UndoList, undo_id

Answer = TypeVar("Answer", bound=BaseModel)
MOST_UNDOS = 1_000
"""Undos of one run."""
_MOST_RUNS_BEFORE = 20
"""Runs of one conversation, one after another, whose undos are looked at when another one goes on from the newest."""
_MOST_NAMED = 20


class UndoError(ResumeError):
    """A run cannot be undone. The message says why, and what to do."""

    verb = "undone"


async def undos(
    client: Client, workflow_id: str, first_run: str
) -> AsyncIterator[tuple[int, WorkflowExecutionDescription | None]]:
    """Yield the undos of a run with their numbers, the first one first. None: another workflow has that id.

    Raises:
        UndoError: there are too many.
        RPCError: Temporal does not answer.
    """
    for number in range(1, MOST_UNDOS + 1):
        handle = client.get_workflow_handle(undo_id(workflow_id, first_run, number))
        described = await unless_missing(handle.describe())
        if described is None:
            return
        of = {"id": workflow_id, "run_id": first_run}
        is_undo = described.workflow_type == UNDO_WORKFLOW and (await memo_of(described)).get(UNDO_MEMO) == of
        yield number, described if is_undo else None
    raise UndoError(f"The run {workflow_id!r} was undone {MOST_UNDOS:,} times, the limit of one run.")


async def ask_workflow(
    asked: WorkflowHandle[Any, Any], what: str, query: str, answer: type[Answer], *args: Any
) -> Answer:
    """The answer of a workflow, which is an undo or a run: `what` says which.

    Raises:
        ResumeError: no worker answers (NoWorkerError), or it cannot be read (UndoError).
        RPCError: Temporal does not answer, or has no such workflow.
    """
    try:
        return answer.model_validate(await query_run(asked, query, *args))
    except RPCError as error:
        if error.status not in NO_WORKER_STATUSES:
            raise
        raise NoWorkerError(f"No worker answers for the {what} {asked.id!r} now ({error.message}).") from None
    except (WorkflowQueryFailedError, ValidationError) as error:
        raise UndoError(f"The {what} {asked.id!r} cannot say what it has done: {str(error)[:300]}") from None


async def list_of_undo(client: Client, described: WorkflowExecutionDescription) -> UndoList:
    """The list of an undo, open or ended however it did.

    Raises:
        Exception: as `ask_workflow`.
    """
    undo = client.get_workflow_handle(described.id, run_id=described.run_id)
    return await ask_workflow(undo, "undo", UNDO_QUERY, UndoList)


async def without_undone(
    client: Client,
    described: WorkflowExecutionDescription,
    carried: Carried,
    messages: Sequence[Message],
    *,
    step: int | None = None,
    only_checks: bool = False,
) -> tuple[Carried, list[Message]]:
    """Return what a new run gets from the run that it goes on from, without the calls that were undone there.

    What is carried has the number of undos: of the run, and of the runs before it that it continues or was forked from. For
    a sub-agent's run, they are those of the run that started it.

    Calls of tools with `once` that are undone are left out of what is carried; a message for each undone run is added, which
    names the calls. `only_checks`: what was undone is not read; then no worker is needed.

    Raises:
        ResumeError: an undo goes on (UndoOpenError), or cannot be read.
        RPCError: Temporal does not answer.
    """
    added, count, once = list(messages), carried.undos or 0, carried.once
    async for run, before in _run_and_those_before(client, described, step):
        undone, number = await _undone(client, run, only_counts=only_checks)
        count += number
        calls = [call for call in undone if before is None or call.place_in_root[0] < before]
        gone = {call.call_id if call.run == run.id else call.place_in_root[1] for call in calls}
        once = [call for call in once if call.call_id not in gone]
        note = UserMessage(role="user", text=_note(calls))
        if calls and note not in added:
            added.append(note)
    return carried.model_copy(update={"once": once, "undos": count}), added


async def _run_and_those_before(
    client: Client, described: WorkflowExecutionDescription, before: int | None = None
) -> AsyncIterator[tuple[WorkflowExecutionDescription, int | None]]:
    """Yield a run and the runs before it, which it continues or was forked from, the newest first, if Temporal has them.

    With each comes the step before which the next run began; None: it has all steps. `before`: that of the first run.
    """
    run: ChainedRun | None = await ChainedRun.of(described)
    for _ in range(_MOST_RUNS_BEFORE):
        if run is None:
            return
        yield run.description, before
        if (origin := run.origin) is None:
            return
        before = None if origin.kind == "resume" else min(before or origin.step, origin.step)
        run = await ChainedRun.read(client, origin.workflow_id, origin.run_id)


async def _undone(
    client: Client, described: WorkflowExecutionDescription, *, only_counts: bool
) -> tuple[list[CallToUndo], int]:
    """The calls of a run, and of the runs below it, that are undone; and how many undos there were."""
    root, number = await _root(client, described), 0
    calls: dict[tuple[str, int], CallToUndo] = {}
    async for number, undo in undos(client, root.id, first_run_id(root)):  # noqa: B007 - the last one is returned
        if undo is not None and undo.status == WorkflowExecutionStatus.RUNNING:
            raise UndoOpenError(root.id, undo.id)
        listed = (await list_of_undo(client, undo)).calls if undo is not None and not only_counts else ()
        calls |= {call.key: call for call in listed if call.state == "undone"}
    return [call for call in calls.values() if described.id in (root.id, call.run)], number


async def _root(client: Client, described: WorkflowExecutionDescription) -> WorkflowExecutionDescription:
    """The run that a sub-agent's run works for, at the top: undos are that run's. Any other run is its own."""
    while described.parent_id is not None:
        handle = client.get_workflow_handle(described.parent_id, run_id=described.parent_run_id)
        parent = await unless_missing(handle.describe())
        if parent is None or parent.workflow_type != AGENT_WORKFLOW:
            break
        described = parent
    return described


def _note(calls: Iterable[CallToUndo]) -> str:
    named = [f"`{call.name}` ({call.call_id})" for call in calls]
    more = f", and {len(named) - _MOST_NAMED:,} more" if len(named) > _MOST_NAMED else ""
    return (
        f"What these calls have done was undone since, and is no longer there: {', '.join(named[:_MOST_NAMED])}{more}. "
        "Make a call again if it is needed."
    )
