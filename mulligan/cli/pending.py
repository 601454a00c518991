"""`mulligan pending`: the calls that wait for a person."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mulligan.cli._people import read_pending_calls
from mulligan.cli._runs import is_open_run
from mulligan.cli._terminal import OK, AsJson, connect_or_fail, fail, out, print_json, print_progress, run_command

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecution

PARALLEL_QUERIES = 20
"""Runs that are queried at the same time."""


def pending(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="The id of one run: its calls, and those of its sub-agents' runs. Without it, all open runs.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tool calls that wait for a person: for approval, or for an answer. The oldest is first.

    Examples: `mulligan pending`, `mulligan pending my-run --json`

    Exit code: 0, also if no call waits or the run has ended; 2 no such run or no server.
    """
    run_command(_pending(run_id, as_json=as_json))


async def _pending(run_id: str | None, *, as_json: bool) -> int:
    client = await connect_or_fail()
    none_waits = "no call waits for a person."
    waits: list[dict[str, Any]] = []
    if run_id is not None and not await is_open_run(client, run_id):
        none_waits = f"the run {run_id!r} has ended, so none of its calls waits for a person."
    elif run_id is not None:
        waits = await read_pending_calls(client, run_id)
    else:
        waits = await _read_all(client)
    waits.sort(key=lambda wait: str(wait["since"]))
    if as_json:
        print_json(waits)
    elif not waits:
        print_progress(none_waits)
    else:
        out.print(_table(waits))
    return OK


async def _read_all(client: Client) -> list[dict[str, Any]]:
    """The waiting calls of all open runs. Only runs whose memo says that calls wait are queried."""
    from temporalio.service import RPCError

    run_ids: list[str] = []
    unreadable = 0
    try:
        async for execution in client.list_workflows('ExecutionStatus = "Running"'):
            count = await _count_waiting(execution)
            unreadable += count is None
            if count:
                run_ids.append(execution.id)
    except RPCError as error:
        fail(f"Temporal could not list the runs: {error.message}")
    if unreadable:
        from mulligan.cli._steps import counted

        print_progress(
            f"{counted(unreadable, 'open run')} left out: encrypted with keys that MULLIGAN_ENCRYPTION_KEYS does not have."
        )
    limit = asyncio.Semaphore(PARALLEL_QUERIES)
    answers = await asyncio.gather(*(_read_run(client, run_id, limit) for run_id in run_ids))
    return [call for answer in answers for call in answer]


async def _count_waiting(execution: WorkflowExecution) -> int | None:
    """How many calls wait, according to the run's memo. None if the memo cannot be decrypted."""
    from mulligan.client.find_runs import readable_memo
    from mulligan.wire.run_status import PENDING_MEMO

    memo = await readable_memo(execution)
    return None if memo is None else memo.get(PENDING_MEMO, 0)


async def _read_run(client: Client, run_id: str, limit: asyncio.Semaphore) -> list[dict[str, Any]]:
    """The waiting calls of a run. If the run does not answer, this is reported on stderr, and the others are shown."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    from mulligan.client.read_run import query_run

    async with limit:
        try:
            return [{"id": run_id, **call} for call in await query_run(client.get_workflow_handle(run_id), "pending")]
        except (RPCError, WorkflowQueryFailedError) as error:
            print_progress(f"{run_id} does not answer: {error}")
            return []


def _table(waits: list[dict[str, Any]]) -> Table:
    from mulligan.cli._steps import short

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "kind", "call", "since (UTC)", "what"):
        table.add_column(heading, no_wrap=heading in ("kind", "since (UTC)"), overflow="fold")
    for wait in waits:
        is_question = wait["kind"] == "question"
        # The text of an approval begins with the tool's name.
        text = f"{wait['tool']}: {wait['text']}" if is_question else wait["text"]
        agent = f"{wait['agent']}: " if wait.get("agent") else ""
        table.add_row(
            Text(short(wait["id"])),
            Text(short(wait["kind"])),
            Text(short(wait["call_id"])),
            Text(short(str(wait["since"])[5:16].replace("T", " "))),
            Text(short(agent + text), style="cyan" if is_question else "yellow"),
        )
    return table
