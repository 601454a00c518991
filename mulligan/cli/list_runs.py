"""`mulligan list`: recent runs."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from rich.table import Table
from rich.text import Text

from mulligan.cli._terminal import (
    OK,
    AsJson,
    connect_or_fail,
    fail,
    out,
    print_json,
    print_progress,
    printable,
    run_command,
)

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecution

TEMPORAL_STATUSES = {
    name.lower(): name for name in ("Running", "Completed", "Failed", "Canceled", "Terminated", "TimedOut")
} | {"cancelled": "Canceled", "timed_out": "TimedOut"}
"""Temporal's statuses, by the words that `--status` takes for them."""
WAITING = "waiting"
"""The status of an open run that waits for a person, as in `progress`. A run has a memo of this name while it does."""
PARALLEL_READS = 20
"""Runs whose results are read at the same time."""
MOST_WAITS = 100
"""Open runs for which it is read what they wait for."""
MOST_SUB_RUNS = 5
"""Runs of sub-agents that are looked at for one of them."""


def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of runs.")] = 20,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only runs with this status: running, waiting (for a person), failed, canceled, terminated, timedout, or a "
            "result's: completed, stopped, max_steps, max_tokens, refused …",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.", show_default=False)] = None,
    sub_agents: Annotated[bool, typer.Option("--sub-agents", help="Also list the runs of sub-agents.")] = False,
    as_json: AsJson = False,
) -> None:
    """List recent runs, the one that started last first. The status of a run that has ended is that of its result.

    Open runs are shown with what they wait for, workflows of your own with their type in place of an agent.
    `mulligan show` shows the runs of sub-agents below the run that called them.

    Examples: `mulligan list --status waiting`, `mulligan list --agent support --status stopped`
    """
    run_command(_list(limit, status, agent, sub_agents=sub_agents, as_json=as_json))


async def _list(limit: int, status: str | None, agent: str | None, *, sub_agents: bool, as_json: bool) -> int:
    from temporalio.service import RPCError

    # Workflows of a user's own are listed, too: nothing that can be searched says that they have agents.
    # A chain of workflow runs after continue-as-new is one run to its user: only the newest is listed.
    query = 'ExecutionStatus != "ContinuedAsNew"'
    if not sub_agents:
        query += " AND ParentWorkflowId IS NULL"
    wanted = None if status is None else status.lower()
    if wanted is not None:
        query += f' AND ExecutionStatus = "{_temporal_status(wanted)}"'
    client = await connect_or_fail()
    query += await _attribute_conditions(client, wanted, agent)
    try:
        runs = await _read_runs(client, query, limit, wanted, agent)
    except RPCError as error:
        fail(f"Temporal could not list the runs: {error.message}")
    await _add_waits(client, runs)
    runs.sort(key=lambda run: str(run["started"]), reverse=True)
    if as_json:
        print_json(runs)
    elif not runs:
        print_progress('no runs yet; start one with: mulligan start assistant "What is in the workspace?"')
    else:
        out.print(_table(runs))
    return OK


async def _attribute_conditions(client: Client, status: str | None, agent: str | None) -> str:
    """What the server can select by search attributes, as far as it has them. Other runs may have none: all are checked."""
    from mulligan.client.registered_attributes import RegisteredAttributes
    from mulligan.wire.search_attributes import AGENT_ATTRIBUTE, STATUS_ATTRIBUTE

    wanted = {AGENT_ATTRIBUTE.name: agent, STATUS_ATTRIBUTE.name: status if status in _listed_statuses() else None}
    if not any(wanted.values()):
        return ""
    names = await RegisteredAttributes().names(client)
    return "".join(
        f" AND ({name} = {json.dumps(value, ensure_ascii=False)} OR {name} IS NULL)"
        for name, value in wanted.items()
        if value is not None and name in names
    )


def _listed_statuses() -> set[str]:
    """The statuses that runs have as a search attribute, and not or not only as Temporal's status."""
    from mulligan.values import Status

    return {WAITING, *get_args(Status)}


def _temporal_status(wanted: str) -> str:
    """Temporal's status of the runs whose status may be the wanted one. A result's status is not known to Temporal."""
    from mulligan.values import Status

    if wanted in get_args(Status):
        return "Completed"
    if wanted == WAITING:
        return "Running"
    if wanted not in TEMPORAL_STATUSES:
        known = ", ".join(dict.fromkeys([*TEMPORAL_STATUSES, WAITING, *get_args(Status)]))
        fail(f"--status is {wanted!r}; it must be one of: {known}.")
    return TEMPORAL_STATUSES[wanted]


async def _read_runs(
    client: Client, query: str, limit: int, status: str | None, agent: str | None
) -> list[dict[str, Any]]:
    """At most `limit` runs of a query, of that agent and with that status. Results are read only of these."""
    runs: list[dict[str, Any]] = []
    batch: list[WorkflowExecution] = []
    is_certain = {WAITING, *TEMPORAL_STATUSES} - {"completed"}

    async def read_batch() -> None:
        for run in await asyncio.gather(*(_describe(client, execution) for execution in batch)):
            if status is None or status in is_certain or run["status"] == status:
                runs.append(run)
        batch.clear()

    async for execution in client.list_workflows(query, page_size=limit):
        if agent is not None and await _memo(execution, "agent") != agent:
            continue
        if status == WAITING and not await _memo(execution, WAITING):
            continue
        batch.append(execution)
        if len(batch) == min(PARALLEL_READS, limit - len(runs)):
            await read_batch()
        if len(runs) == limit:
            break
    await read_batch()
    return runs


async def _describe(client: Client, execution: WorkflowExecution) -> dict[str, Any]:
    """A run as JSON."""
    from mulligan.wire.sub_run import AGENT_WORKFLOW

    return {
        "id": execution.id,
        "agent": await _memo(execution, "agent"),
        **({"type": execution.workflow_type} if execution.workflow_type != AGENT_WORKFLOW else {}),
        **({"parent": execution.parent_id} if execution.parent_id else {}),
        "status": await _status(client, execution),
        "started": execution.start_time.isoformat(),
        "seconds": ((execution.close_time or datetime.now(UTC)) - execution.start_time).total_seconds(),
    }


async def _status(client: Client, execution: WorkflowExecution) -> str:
    """The status of a run: Temporal's, or its result's if it has one that can be read."""
    from temporalio.client import WorkflowContinuedAsNewError, WorkflowExecutionStatus
    from temporalio.service import RPCError

    from mulligan.client.connect import explain_unreadable_data
    from mulligan.wire.sub_run import AGENT_WORKFLOW

    if execution.status == WorkflowExecutionStatus.COMPLETED and execution.workflow_type != AGENT_WORKFLOW:
        return "completed"  # its result is the user's, whatever its fields mean
    if execution.status != WorkflowExecutionStatus.COMPLETED:
        return execution.status.name.lower() if execution.status else "unknown"
    try:
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        result = await handle.result(follow_runs=False)
    except (RPCError, WorkflowContinuedAsNewError):  # the latter: the next run of a cron schedule follows
        return "completed"
    except Exception as error:
        if not explain_unreadable_data(error):
            raise
        return "completed"
    return str(result.get("status", "completed")) if isinstance(result, dict) else "completed"


async def _add_waits(client: Client, runs: list[dict[str, Any]]) -> None:
    """Add to the newest open runs what they wait for. One that cannot be read is listed without it."""
    from temporalio.service import RPCError

    from mulligan.client.wait_reader import WaitReader

    reader, limit = WaitReader(client, MOST_SUB_RUNS), asyncio.Semaphore(PARALLEL_READS)

    async def add(run: dict[str, Any]) -> None:
        with suppress(RPCError, ValueError, KeyError):
            async with limit:
                waiting = await reader.read(run["id"])
            if waiting is not None:
                run["waiting_for"] = waiting.model_dump(mode="json")

    await asyncio.gather(*(add(run) for run in [run for run in runs if run["status"] == "running"][:MOST_WAITS]))


async def _memo(execution: WorkflowExecution, name: str) -> Any:
    """A value of the memo. None if it is encrypted and the key is missing; the other runs are still listed."""
    from mulligan.client.connect import explain_unreadable_data

    try:
        return (await execution.memo()).get(name)
    except (KeyError, ValueError) as error:
        if not explain_unreadable_data(error):
            raise
        return None


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    headings = ["id", "agent", "status", "started", "seconds"]
    if any("waiting_for" in each for each in runs):
        headings.append("waiting for")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading == "seconds" else "left"
        table.add_column(heading, no_wrap=heading == "id", overflow="fold", justify=justify)
    colours = {"completed": "green", "running": "cyan", "failed": "red"}
    for each in runs:
        table.add_row(
            Text(each["id"]),
            Text(each["agent"] or each.get("type") or ""),
            Text(each["status"], style=colours.get(each["status"], "yellow")),
            each["started"][:19].replace("T", " "),
            f"{each['seconds']:.1f}",
            *([Text(printable(each["waiting_for"]["detail"]))] if "waiting_for" in each else []),
        )
    return table
