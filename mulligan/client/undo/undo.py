"""Undo a run that has ended: read what it has executed, and start the workflow that undoes it.

The undos of a run have ids of their own form, with a number. The next one is started only when the one before has ended, and
Temporal starts each id once: so each undo knows what all before it have done. Whoever terminates an undo ends only its
workflow: the function that it has called may go on, so the next undo calls that one again only with `lost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan.client.find_runs import memo_of
from mulligan.client.origins.chained_run import ChainedRun, newest_continuation
from mulligan.client.origins.run_state import RunNotFoundError, RunOpenError, describe_ended, first_run_id
from mulligan.client.undo.undos_of_run import (
    UndoError,
    ask_workflow,
    list_of_undo,
    undos,
    without_undone,
)
from mulligan.client.unless_missing import unless_missing
from mulligan.values import ErrorInfo
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.run_priority import TENANT_MEMO
from mulligan.wire.run_status import status_of_cause
from mulligan.wire.undo import (
    EXECUTED_QUERY,
    UNDO_MEMO,
    UNDO_WORKFLOW,
    CallToUndo,
    ExecutedPage,
    ExecutedRequest,
    SubRunOfCall,
    UndoList,
    UndoOptions,
    UndoRun,
    undo_id,
)

Handle = WorkflowHandle[Any, Any]
GOES_ON = without_undone
OPTIONS_MEMO = "mulligan_undo_options"
"""The key, in the memo of an undo, of its options."""
MOST_CALLS, MOST_BYTES = 1_500, 700_000
"""Calls of one undo, and their bytes as JSON: with the reason for each that failed, its list is one payload."""
MOST_READ = 50_000
"""Calls of a run that an undo chooses from."""


class GoneOnError(UndoError):
    """The conversation of the run was continued. `workflow_id`: the newest run of it."""

    def __init__(self, run: str, workflow_id: str) -> None:
        super().__init__(
            f"The run {run!r} was continued as {workflow_id!r}, which goes on from what this run has done; undo that one "
            "first, or say that this one is to be undone all the same (--continued; `although_continued` over HTTP)."
        )
        self.workflow_id = workflow_id


@dataclass(frozen=True)
class Undone:
    """What is, or will be, undone of a run.

    `id`: of the newest undo; None: there is none. `is_open`: whether it goes on. `error`: why it has undone nothing.
    `calls`: in the order in which they are undone.
    """

    id: str | None
    is_open: bool
    calls: list[CallToUndo]
    error: ErrorInfo | None = None

    def to_json(self) -> dict[str, Any]:
        """The calls by what became of them, as the commands and the API show it."""
        status = "failed" if self.error else "running" if self.is_open else "completed" if self.id else "not_started"
        listed: dict[str, Any] = {state: [] for state in ("undone", "failed", "not_reached", "no_undo")}
        fields = {"run", "call_id", "name", "agent", "step", "error"}
        for call in self.calls:
            shown = call.model_dump(mode="json", include=fields)
            listed.setdefault(call.state, []).append({**shown, "error": shown.get("error")})
        return {"id": self.id, "status": status, **listed, "error": self.error and self.error.model_dump()}


async def start_undo(
    client: Client, workflow_id: str, options: UndoOptions, *, although_continued: bool = False
) -> Handle:
    """Undo the calls of a run that has ended, and of its sub-agents' runs. Where an equal undo goes on, this returns it.

    Args:
        client: A client of the server that has the run.
        workflow_id: The run.
        options: Which calls are undone, and whether a failed one ends the undo.
        although_continued: Whether it is undone although another run has continued its conversation.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), it is open (RunOpenError), was continued (GoneOnError), is that
            of a sub-agent, or another undo of it goes on (UndoError).
        RPCError: Temporal does not answer.
    """
    described = await _describe_ended(client, workflow_id)
    run = await ChainedRun.of(described)
    if not although_continued and (continuation := await _gone_on(client, run)) is not None:
        raise GoneOnError(workflow_id, continuation)
    first_run = first_run_id(described)
    for _ in range(2):  # somebody may start one at the same time
        number, before = await _newest_undo(client, workflow_id, first_run)
        if before is not None and before.status == WorkflowExecutionStatus.RUNNING:
            if (await memo_of(before)).get(OPTIONS_MEMO) != options.model_dump():
                raise UndoError(
                    f"Another undo of the run {workflow_id!r} goes on: {before.id!r}. Wait until it has ended."
                )
            return client.get_workflow_handle(before.id, run_id=before.run_id)
        of = {"id": workflow_id, "run_id": first_run}
        memo = {UNDO_MEMO: of, OPTIONS_MEMO: options.model_dump(), TENANT_MEMO: run.tenant}
        try:
            return await client.start_workflow(
                UNDO_WORKFLOW,
                _request(described, options, number + 1).model_copy(update={"although_continued": although_continued}),
                id=undo_id(workflow_id, first_run, number + 1),
                task_queue=described.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={name: value for name, value in memo.items() if value is not None},
                static_summary=f"undo of {workflow_id}"[:190],
            )
        except WorkflowAlreadyStartedError:
            continue
    raise UndoError(f"Another undo of the run {workflow_id!r} was started at this moment; look at what it has done.")


async def read_undo(client: Client, workflow_id: str, options: UndoOptions | None = None) -> Undone:
    """What is undone of a run, and what an undo would undo.

    Raises:
        ResumeError: as `start_undo`; or no worker answers (NoWorkerError).
        RPCError: Temporal does not answer.
    """
    described = await _describe_ended(client, workflow_id)
    first_run = first_run_id(described)
    number, newest = await _newest_undo(client, workflow_id, first_run)
    if newest is None:
        return Undone(None, False, await calls_to_undo(client, _request(described, options, 1)))
    is_open = newest.status == WorkflowExecutionStatus.RUNNING
    if is_open:
        return Undone(newest.id, True, (await list_of_undo(client, newest)).calls)
    calls = await calls_to_undo(client, _request(described, options, number + 1))
    error = None if newest.status == WorkflowExecutionStatus.COMPLETED else await _error_of(client, newest)
    return Undone(newest.id, False, calls, error)


async def read_result(client: Client, handle: Handle) -> Undone:
    """Wait for the end of an undo, and read its list.

    Raises:
        RPCError: Temporal does not answer.
    """
    try:
        ended = UndoList.model_validate(await handle.result())
    except Exception as error:
        described = await handle.describe()
        if described.status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED):
            raise
        listed = await list_of_undo(client, described)
        return Undone(handle.id, False, listed.calls, _reason(error, described))
    return Undone(handle.id, False, ended.calls)


async def calls_to_undo(client: Client, request: UndoRun) -> list[CallToUndo]:
    """The calls that a run and its sub-agents' runs have executed, in the order in which they are undone, each with what
    earlier undos of the run have made of it.

    Raises:
        ResumeError: one of the runs cannot be read, or there are too many calls.
        RPCError: Temporal does not answer.
    """
    reading = _ExecutedCalls(client)
    await reading.read(request.workflow_id, request.run_id, request.from_step or 1)
    calls = sorted(reading.calls, key=lambda call: (call.at, call.run, call.offset), reverse=True)
    known = {call.key: call for call in calls}
    listed: set[tuple[str, int]] = set()
    async for number, described in undos(client, request.workflow_id, request.first_run_id):
        if number >= request.number:
            break
        for before in (await list_of_undo(client, described)).calls if described is not None else ():
            listed.add(before.key)
            call = known.get(before.key)
            if call is not None and before.state in ("undone", "failed"):
                call.state, call.error = before.state, before.error
    if _is_too_much(calls):
        calls = [call for call in calls if call.key not in listed or call.state not in ("undone", "no_undo")]
    if _is_too_much(calls):
        raise UndoError(
            f"The run has executed {len(calls):,} calls that no undo has settled yet, which is too much for one undo; undo "
            "its last steps first: --from-step."
        )
    return calls


def _is_too_much(calls: Sequence[CallToUndo]) -> bool:
    return len(calls) > MOST_CALLS or sum(len(call.model_dump_json()) for call in calls) > MOST_BYTES


class _ExecutedCalls:
    """Reads the calls of a run, and of all runs below it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.calls: list[CallToUndo] = []
        self._read: set[str] = set()

    async def read(self, workflow_id: str, run_id: str, from_step: int = 1, of: SubRunOfCall | None = None) -> None:
        """Read the chain of a run back from its newest workflow run. `of`: that of the root's call that works in it."""
        self._read.add(workflow_id)
        sub_runs: dict[str, SubRunOfCall] = {}
        before: int | None = None
        earlier: str | None = run_id
        while earlier is not None:
            page = await read_executed(self._client, workflow_id, earlier, ExecutedRequest(before=before))
            if len(self.calls) > MOST_READ:
                raise UndoError(f"The run has executed more than {MOST_READ:,} calls, the limit of one undo.")
            for each in page.calls:
                state = "no_undo" if each.schedule is None else "not_reached"
                if each.step >= from_step:
                    call = CallToUndo(**each.model_dump(), run=workflow_id, run_id=earlier, state=state)
                    if of is not None:
                        call.root_step, call.root_call = of.step, of.call_id
                    self.calls.append(call)
            sub_runs |= {each.id: each for each in page.sub_runs if each.step >= from_step}
            before, earlier = page.next, page.earlier or (earlier if page.next is not None else None)
        for sub_run in sub_runs.values():
            if sub_run.id not in self._read:
                await self.read(sub_run.id, await self._newest_run(sub_run), of=of or sub_run)

    async def _newest_run(self, sub_run: SubRunOfCall) -> str:
        described = await unless_missing(self._client.get_workflow_handle(sub_run.id).describe())
        if described is not None and first_run_id(described) != sub_run.run_id:
            handle = self._client.get_workflow_handle(sub_run.id, run_id=sub_run.run_id)
            described = await unless_missing(handle.describe())
        if described is None:
            raise RunNotFoundError(
                f"The run {sub_run.id!r} of a sub-agent, in step {sub_run.step}, is no longer on this server, so it is not "
                f"known what it has done; undo the steps after it: --from-step {sub_run.step + 1}."
            )
        if described.status == WorkflowExecutionStatus.RUNNING:
            raise RunOpenError(f"The run {sub_run.id!r} of a sub-agent is open; stop it first.")
        return described.run_id or ""


async def read_executed(client: Client, workflow_id: str, run_id: str, request: ExecutedRequest) -> ExecutedPage:
    """A page of the calls that a run has executed.

    Raises:
        ResumeError: no worker answers (NoWorkerError), or the run is no longer there (RunNotFoundError), or is another
            program's (UndoError).
    """
    run = client.get_workflow_handle(workflow_id, run_id=run_id)
    if (page := await unless_missing(ask_workflow(run, "run", EXECUTED_QUERY, ExecutedPage, request))) is None:
        raise RunNotFoundError(f"A part of the run {workflow_id!r} is no longer on this server ({run_id}).")
    return page


async def _describe_ended(client: Client, workflow_id: str) -> WorkflowExecutionDescription:
    described = await describe_ended(client, workflow_id, refusal=UndoError)
    if described.parent_id is not None:
        handle = client.get_workflow_handle(described.parent_id, run_id=described.parent_run_id)
        parent = await unless_missing(handle.describe())
        if parent is not None and parent.workflow_type == AGENT_WORKFLOW:
            raise UndoError(
                f"{workflow_id!r} is the run of a sub-agent; undo the run that has called it, {described.parent_id!r}, with "
                "--from-step where only its last steps are to be undone."
            )
    return described


async def _gone_on(client: Client, run: ChainedRun) -> str | None:
    """The id of the newest run that goes on from what a run has done; None: there is none, or all of them are undone."""
    newest: ChainedRun | None = await newest_continuation(client, run)
    while newest is not None and newest.source != run.source:
        if await newest.has_begun(client) and not await _is_undone(client, newest.description):
            return newest.description.id
        before = newest.continued
        newest = await ChainedRun.read(client, before.workflow_id, before.run_id) if before is not None else None
    return None


async def _is_undone(client: Client, described: WorkflowExecutionDescription) -> bool:
    """Whether a run was undone, and nothing is left of it that can be."""
    if described.status == WorkflowExecutionStatus.RUNNING:
        return False
    number, newest = await _newest_undo(client, described.id, first_run_id(described))
    if newest is None or newest.status == WorkflowExecutionStatus.RUNNING:
        return False
    calls = await calls_to_undo(client, _request(described, None, number + 1))
    return all(call.state in ("undone", "no_undo") for call in calls)


async def check_not_continued(client: Client, workflow_id: str) -> None:
    """Check that no run goes on from what a run that has ended has done.

    Raises:
        ResumeError: one does (GoneOnError), or as `start_undo`.
        RPCError: Temporal does not answer.
    """
    run = await ChainedRun.of(await _describe_ended(client, workflow_id))
    if (continuation := await _gone_on(client, run)) is not None:
        raise GoneOnError(workflow_id, continuation)


async def check_not_gone_on(client: Client, request: UndoRun) -> None:
    """Check again, when an undo begins, that no run goes on from what it is to undo, unless it says `although_continued`.

    Raises:
        ResumeError: one does (GoneOnError), or no worker answers (NoWorkerError).
        RPCError: Temporal does not answer.
    """
    run = None if request.although_continued else await ChainedRun.read(client, request.workflow_id, request.run_id)
    if run is not None and (continuation := await _gone_on(client, run)) is not None:
        raise GoneOnError(request.workflow_id, continuation)


async def open_continuation(client: Client, workflow_id: str) -> str | None:
    """The id of the newest run that goes on from a run, if that is open: its undo takes away what it works with.

    Raises:
        RPCError: Temporal does not answer.
    """
    run = await ChainedRun.read(client, workflow_id)
    newest = await newest_continuation(client, run) if run is not None else None
    is_open = newest is not None and newest.description.status == WorkflowExecutionStatus.RUNNING
    return newest.description.id if is_open and newest is not None and newest.description.id != workflow_id else None


def _request(described: WorkflowExecutionDescription, options: UndoOptions | None, number: int) -> UndoRun:
    return UndoRun(
        **(options or UndoOptions()).model_dump(),
        workflow_id=described.id,
        run_id=described.run_id or "",
        first_run_id=first_run_id(described),
        number=number,
    )


async def _newest_undo(
    client: Client, workflow_id: str, first_run: str
) -> tuple[int, WorkflowExecutionDescription | None]:
    """The number of the last undo of a run, and what Temporal knows of it; 0 and None: there is none.

    Another workflow that has such an id takes up its number, and counts for nothing else.
    """
    number, newest = 0, None
    async for number, described in undos(client, workflow_id, first_run):  # noqa: B007 - the last one is returned
        newest = described or newest
    return number, newest


async def _error_of(client: Client, described: WorkflowExecutionDescription) -> ErrorInfo | None:
    try:
        await client.get_workflow_handle(described.id, run_id=described.run_id).result()
    except Exception as error:  # noqa: BLE001 - it has failed, and this is why
        return _reason(error, described)
    return None


def _reason(error: Exception, described: WorkflowExecutionDescription) -> ErrorInfo:
    cause = getattr(error, "cause", None)
    message = getattr(cause, "message", None) or str(cause or error)
    if described.status == WorkflowExecutionStatus.FAILED:
        return ErrorInfo(kind=getattr(cause, "type", None) or type(cause or error).__name__, message=message[:1_000])
    status = status_of_cause(cause)
    return ErrorInfo(kind=status, message=f"The undo was ended: {status}.")
