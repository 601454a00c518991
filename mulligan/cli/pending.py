"""`mulligan pending`: what waits for a person."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mulligan.cli import _people, _terminal
from mulligan.cli._terminal import AsJson, fail, put_json, run

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecution

AT_ONCE = 20
"""Runs that are asked at a time."""


def pending(
    run_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="One run; without it, all.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the calls that wait for a person: for approval, or for an answer. The longest waiting first.

    Examples: `mulligan pending`, `mulligan pending my-run --json`
    """
    run(_pending(run_id, as_json=as_json))


async def _pending(run_id: str | None, *, as_json: bool) -> int:
    client = await _terminal.connected()
    if run_id is not None:
        handle = await _people.open_run(client, run_id)
        waits = [{"id": run_id, **wait} for wait in await _people.pending(handle)]
    else:
        waits = await _of_all(client)
    waits.sort(key=lambda wait: str(wait["since"]))
    if as_json:
        put_json(waits)
    elif not waits:
        _terminal.say("nothing waits for a person.")
    else:
        _terminal.out.print(_table(waits))
    return _terminal.OK


async def _of_all(client: Client) -> list[dict[str, Any]]:
    """What waits in all open runs: those whose memo says that something does are asked."""
    from temporalio.service import RPCError

    found: list[str] = []
    unreadable = 0
    try:
        async for execution in client.list_workflows('ExecutionStatus = "Running"'):
            count = await _waiting(execution)
            unreadable += count is None
            if count:
                found.append(execution.id)
    except RPCError as error:
        fail(f"Temporal did not take the question: {error.message}")
    if unreadable:
        _terminal.say(f"{unreadable} open runs are encrypted: MULLIGAN_ENCRYPTION_KEYS lacks their keys.")
    limit = asyncio.Semaphore(AT_ONCE)
    answers = await asyncio.gather(*(_asked(client, run_id, limit) for run_id in found))
    return [wait for answer in answers for wait in answer]


async def _waiting(execution: WorkflowExecution) -> int | None:
    """How many calls wait, by the run's memo; None where it cannot be read."""
    from mulligan.client.connect import explain_unreadable_data

    try:
        count = (await execution.memo()).get("waiting", 0)
    except (KeyError, ValueError) as error:
        if not explain_unreadable_data(error):
            raise
        return None
    return count if isinstance(count, int) else 0


async def _asked(client: Client, run_id: str, limit: asyncio.Semaphore) -> list[dict[str, Any]]:
    """What waits in a run; a run that does not answer is said on stderr, and the others are shown all the same."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    from mulligan.client.read_run import query_run

    async with limit:
        try:
            return [{"id": run_id, **wait} for wait in await query_run(client.get_workflow_handle(run_id), "pending")]
        except (RPCError, WorkflowQueryFailedError) as error:
            _terminal.say(f"{run_id} does not answer: {error}")
            return []


def _table(waits: list[dict[str, Any]]) -> Table:
    from mulligan.cli._steps import short

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "agent", "call", "tool", "since (UTC)", "what"):
        table.add_column(heading, no_wrap=heading in ("run", "call"), overflow="fold")
    for wait in waits:
        since = str(wait["since"])[:19].replace("T", " ")
        is_question = wait["kind"] == "question"
        table.add_row(
            Text(short(wait["id"])),
            Text(short(wait.get("agent") or "")),
            Text(short(wait["call_id"])),
            Text(short(wait["tool"])),
            since,
            Text(short(wait["text"]), style="cyan" if is_question else "yellow"),
        )
    return table
