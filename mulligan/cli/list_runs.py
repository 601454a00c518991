"""`mulligan list`: recent runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mulligan.cli._print_rows import GAP, print_rows
from mulligan.cli._terminal import (
    OK,
    AsJson,
    connect_or_fail,
    fail,
    print_json,
    print_progress,
)
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client

PARALLEL_READS = 20
"""Open runs that are read at the same time."""
MOST_WAITS = 100
"""Open runs for which it is read what they wait for."""
MOST_SUB_RUNS = 5
"""Runs of sub-agents that are looked at for one of them."""
DIGITS_SHOWN, WIDTH = 8, 80
"""Digits of a version, and columns of a terminal in which a table with versions has to fit."""
HEADINGS = ("id", "agent", "version", "status", "started", "seconds")


async def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of runs.")] = 20,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only runs with this status: running, waiting (for people, callbacks or timers only), failed, cancelled, "
            "terminated, timed_out, or a result's: completed, stopped, max_steps, max_tokens, refused …",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.", show_default=False)] = None,
    tenant: Annotated[str | None, typer.Option(help="Only runs of this tenant.", show_default=False)] = None,
    forked_from: Annotated[
        str | None, typer.Option(metavar="ID", help="Only forks of this run.", show_default=False)
    ] = None,
    sub_agents: Annotated[bool, typer.Option("--sub-agents", help="Also list the runs of sub-agents.")] = False,
    as_json: AsJson = False,
) -> int:
    """List recent runs: the open ones, then the others, the one that ended last first.

    The status of a run that has ended is that of its result.

    Below the table: what open runs wait for. In a terminal that is too narrow for the table, the id of a run stands above
    the rest. A workflow of your own has its type in place of an agent.
    `mulligan show` shows the runs of sub-agents below the run that called them.

    Examples: `mulligan list --status waiting`, `mulligan list --agent support --status stopped`
    """
    from mulligan.client.find_runs import RunQuery, StatusError, first_runs

    query = RunQuery(status=status, agent=agent, tenant=tenant, forked_from=forked_from, sub_agents=sub_agents)
    try:
        query.check()
    except StatusError as error:
        fail(f"--status {error}")
    client = await connect_or_fail()
    runs = await first_runs(client, query, limit)
    await _add_waits(client, runs)
    runs.sort(key=lambda run: str(run["started"]), reverse=True)
    if as_json:
        print_json(runs)
    elif not runs:
        print_progress('no runs yet; start one with: mulligan start assistant "What is in the workspace?"')
    else:
        waits = [run.get("waiting_for") for run in runs]
        notes = [
            (printable(run["id"]), printable(wait["detail"])) if wait else None
            for run, wait in zip(runs, waits, strict=True)
        ]
        headings, *rows = _table(runs)
        print_rows([each.plain for each in headings], rows, notes)
    return OK


async def _add_waits(client: Client, runs: list[dict[str, Any]]) -> None:
    """Add to the newest open runs what they wait for. A run that cannot be read is listed without them."""
    from mulligan.client.wait_reader import WaitReader
    from mulligan.wire.run_status import is_open

    reader, limit = WaitReader(client, MOST_SUB_RUNS), asyncio.Semaphore(PARALLEL_READS)

    async def add(run: dict[str, Any]) -> None:
        async with limit:
            waiting = await reader.read_or_none(run["id"])
        if waiting is not None:
            run["waiting_for"] = waiting.model_dump(mode="json")

    await asyncio.gather(*(add(run) for run in [run for run in runs if is_open(run["status"])][:MOST_WAITS]))


def _table(runs: list[dict[str, Any]]) -> list[list[Text]]:
    """The headings and the cells of the runs, with the agents' versions if there are any and the table fits with them."""
    rows = [[*map(Text, HEADINGS)], *map(_cells, runs)]
    width = sum(max(cell.cell_len for cell in column) + len(GAP) for column in zip(*rows, strict=True)) - len(GAP)
    has_versions = any(run.get("version") for run in runs)
    return rows if has_versions and width <= WIDTH else [[*row[:2], *row[3:]] for row in rows]


def _cells(run: dict[str, Any]) -> list[Text]:
    """The cells of a run, in the order of `HEADINGS`."""
    colours = {"completed": "green", "running": "cyan", "waiting": "magenta", "failed": "red"}
    return [
        Text(printable(run["id"])),
        Text(printable(run["agent"] or run.get("type") or "")),
        Text(printable(run.get("label") or run.get("version", "")[:DIGITS_SHOWN])),
        Text(printable(run["status"]), style=colours.get(run["status"], "yellow")),
        Text(run["started"][:19].replace("T", " ")),
        Text(f"{run['seconds']:.1f}", justify="right"),
    ]
