"""`mulligan show`: a run's steps, and where it stands or how it ended; or its trace."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, fail, put_json, run


def show(
    id: Annotated[str, typer.Argument(help="The run's id.")],  # noqa: A002 - what Temporal calls it
    trace: Annotated[bool, typer.Option("--trace", help="Draw its trace: a tree, and when each span ran.")] = False,
    whole: Annotated[bool, typer.Option("--all", help="With --trace: leave nothing out of a long one.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="With the steps of the sub-agents' runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's steps: what the model said, each call, its repairs, its result or what the model was told.

    Below a call of a sub-agent: the runs that came of it.

    Examples: `mulligan show my-run`, `mulligan show my-run --trace`

    A trace is from Jaeger (`MULLIGAN_JAEGER_URL`, or http://localhost:16686 if it answers), else from Temporal's history:
    that holds the times of all calls and every failure that the model was told of, but no attempts that were followed by
    another, and no tokens.

    Exit code: 0 completed or still open, 1 it did not complete, 2 no such run or no server.
    """
    if whole and not trace:
        fail("--all goes with --trace.")
    if deep and trace:
        fail("--deep goes without --trace: a trace holds the runs of sub-agents anyway.")
    run(_trace(id, whole=whole, as_json=as_json) if trace else _show(id, deep=deep, as_json=as_json))


async def _show(run_id: str, *, deep: bool, as_json: bool) -> int:
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError

    from mulligan.cli._links import say_links_of
    from mulligan.cli._steps import cost_of, end_view, step_view
    from mulligan.cli._sub_runs import sub_runs, views
    from mulligan.client.read_run import RunEnd, query_run, read_steps, wait_for_end
    from mulligan.trace_view.history import size_of_chain

    client = await _terminal.connected()
    handle = await find(client, run_id)
    steps: list[dict[str, Any]] = []
    progress: dict[str, Any] | None = None
    unanswered = ""
    try:
        progress = await query_run(handle, "progress")
        steps = await read_steps(client, handle)
    except RPCError as error:
        unanswered = error.message
    description = await handle.describe()
    is_open = description.status == WorkflowExecutionStatus.RUNNING
    end = RunEnd("running") if is_open else await wait_for_end(handle)
    if is_open and progress is not None:
        end = RunEnd(progress["status"])
    seen = await sub_runs(client, description.root_id or run_id, steps, deep=deep)
    size = await size_of_chain(client, run_id)
    resumed_from = await _resumed_from(description)
    if as_json:
        put_json(
            {"id": run_id, "status": end.status, "progress": progress, "steps": steps}
            | {"result": end.result, "error": end.error, "history": asdict(size)}
            | ({"sub_agents": [each.to_json() for each in seen]} if seen else {})
            | {"resumed_from": resumed_from}
        )
    else:
        if resumed_from:
            _terminal.out.print(f"goes on from {resumed_from}", style="dim", markup=False, soft_wrap=True)
        for step in steps:
            _terminal.out.print(step_view(step, partial(views, seen, step["step"])))
        _terminal.out.print(end_view(end))
        if is_open and progress is not None:
            running = ", ".join(progress["running"]) or "the model"
            far = f"step {progress['step']} of {progress['max_steps']}{cost_of(progress)}"
            _terminal.out.print(f"{far}; waits for {running}", style="dim")
        chained = f" in {size.runs} runs" if size.runs > 1 else ""
        _terminal.out.print(f"history: {size.events:,} events, {size.bytes / 1000:,.0f} KB{chained}", style="dim")
    await say_links_of(client, handle)
    if unanswered:
        _terminal.say(f"its steps cannot be read now: no worker that serves it answers ({unanswered})")
    return _terminal.OK if end.completed or is_open else _terminal.NOT_COMPLETED


async def _resumed_from(description: Any) -> str | None:
    """The id of the run that this one goes on from."""
    from mulligan.client.connect import explain_unreadable_data

    try:
        memo = await description.memo()
    except (KeyError, ValueError) as error:
        if not explain_unreadable_data(error):
            raise
        return None
    found: str | None = (memo.get("resumed_from") or {}).get("workflow_id")
    return found


async def _trace(run_id: str, *, whole: bool, as_json: bool) -> int:
    from temporalio.client import WorkflowExecutionStatus

    from mulligan.cli._links import say_links_of
    from mulligan.cli._trace import draw, heading
    from mulligan.client.read_run import wait_for_end
    from mulligan.client.settings import settings
    from mulligan.errors import DeclarationError
    from mulligan.trace_view.history_events import Unreadable
    from mulligan.trace_view.source import run_trace

    client = await _terminal.connected()
    handle = await find(client, run_id)
    is_open = (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    try:
        found = await run_trace(client, run_id, settings().jaeger_url, is_open=is_open)
        end = None if is_open else await wait_for_end(handle)
    except DeclarationError as error:
        fail(str(error))
    except Unreadable as error:
        fail(f"the history of {run_id!r} cannot be read: {error}. If it is encrypted, set MULLIGAN_ENCRYPTION_KEYS.")
    if found is not None and found.warning:
        _terminal.say(found.warning)
    if as_json:
        spans = [span.to_json() for span in found.spans] if found else []
        put_json({"id": run_id, "trace_id": found and found.trace_id, "source": found and found.source, "spans": spans})
    elif found is None:
        _terminal.say(f"{run_id} has no trace: no worker has opened an agent in it.")
    else:
        title = heading(found.trace_id, found.spans, found.origin)
        _terminal.out.print(title, markup=False, soft_wrap=True)
        draw(_terminal.out, found.spans, whole=whole)
    await say_links_of(client, handle, found.trace_id if found else None)
    return _terminal.OK if end is None or end.completed else _terminal.NOT_COMPLETED


async def find(client: Any, run_id: str) -> Any:
    """The run's handle, or the end of the command where there is no such run."""
    from temporalio.service import RPCError, RPCStatusCode

    handle = client.get_workflow_handle(run_id)
    try:
        await handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            fail(f"there is no run {run_id!r} on this server; see `mulligan list`.")
        fail(f"Temporal did not answer for {run_id!r}: {error.message}")
    return handle
