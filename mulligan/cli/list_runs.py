"""`mulligan list`: recent runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mulligan.cli._terminal import OK, AsJson, connect_or_fail, fail, out, print_json, print_progress, run_command

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution


def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of runs.")] = 20,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only runs with this status: Running, Completed, Failed, Canceled, Terminated or TimedOut.",
            show_default=False,
        ),
    ] = None,
    sub_agents: Annotated[bool, typer.Option("--sub-agents", help="Also list the runs of sub-agents.")] = False,
    as_json: AsJson = False,
) -> None:
    """List recent runs, the newest first. `mulligan show` shows the runs of sub-agents below the run that called them.

    Example: `mulligan list --status Running`
    """
    run_command(_list(limit, status, sub_agents=sub_agents, as_json=as_json))


async def _list(limit: int, status: str | None, *, sub_agents: bool, as_json: bool) -> int:
    from temporalio.service import RPCError

    query = 'WorkflowType = "AgentWorkflow"'
    if not sub_agents:
        query += " AND ParentWorkflowId IS NULL"
    if status is not None:
        if not status.isalpha():
            fail(f"--status is {status!r}; it must be one word, such as Running or Failed.")
        query += f' AND ExecutionStatus = "{status.capitalize() if status.islower() else status}"'
    client = await connect_or_fail()
    runs: list[dict[str, Any]] = []
    try:
        async for execution in client.list_workflows(query, limit=limit):
            # A chain of workflow runs after continue-as-new is one run to its user: only the newest is listed.
            if execution.status is not None and execution.status.name == "CONTINUED_AS_NEW":
                continue
            runs.append(
                {
                    "id": execution.id,
                    "agent": await _agent_name(execution),
                    **({"parent": execution.parent_id} if execution.parent_id else {}),
                    "status": execution.status.name.lower() if execution.status else "unknown",
                    "started": execution.start_time.isoformat(),
                    "seconds": ((execution.close_time or datetime.now(UTC)) - execution.start_time).total_seconds(),
                }
            )
    except RPCError as error:
        fail(f"Temporal could not list the runs: {error.message}")
    if as_json:
        print_json(runs)
    elif not runs:
        print_progress('no runs yet; start one with: mulligan start assistant "What is in the workspace?"')
    else:
        out.print(_table(runs))
    return OK


async def _agent_name(execution: WorkflowExecution) -> str | None:
    """The agent's name. None if it is encrypted and the key is missing; the other runs are still listed."""
    from mulligan.client.connect import explain_unreadable_data

    try:
        agent: str | None = (await execution.memo()).get("agent")
    except (KeyError, ValueError) as error:
        if not explain_unreadable_data(error):
            raise
        return None
    return agent


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "agent", "status", "started", "seconds"):
        table.add_column(heading, no_wrap=heading == "id", justify="right" if heading == "seconds" else "left")
    colours = {"completed": "green", "running": "cyan", "failed": "red"}
    for each in runs:
        table.add_row(
            Text(each["id"]),
            Text(each["agent"] or ""),
            Text(each["status"], style=colours.get(each["status"], "yellow")),
            each["started"][:19].replace("T", " "),
            f"{each['seconds']:.1f}",
        )
    return table
