"""`mulligan show`: a run's steps, and where it stands or how it ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, fail, put_json, run


def show(
    id: Annotated[str, typer.Argument(help="The run's id.")],  # noqa: A002 - what Temporal calls it
    as_json: AsJson = False,
) -> None:
    """Show a run's steps: what the model said, each call, its repairs, its result or what the model was told.

    Example: `mulligan show my-run`

    Exit code: 0 completed or still open, 1 it did not complete, 2 no such run or no server.
    """
    run(_show(id, as_json=as_json))


async def _show(run_id: str, *, as_json: bool) -> int:
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError

    from mulligan.cli._steps import end_view, step_view
    from mulligan.follow import Ended, all_steps, ended

    client = await _terminal.connected()
    handle = await find(client, run_id)
    steps: list[dict[str, Any]] = []
    progress: dict[str, Any] | None = None
    unanswered = ""
    try:
        progress = await handle.query("progress")
        steps = await all_steps(handle)
    except RPCError as error:
        unanswered = error.message
    description = await handle.describe()
    is_open = description.status == WorkflowExecutionStatus.RUNNING
    end = Ended("running") if is_open else await ended(handle)
    if is_open and progress is not None:
        end = Ended(progress["status"])
    if as_json:
        put_json(
            {"id": run_id, "status": end.status, "progress": progress, "steps": steps}
            | {"result": end.result, "error": end.error}
        )
    else:
        for step in steps:
            _terminal.out.print(step_view(step))
        _terminal.out.print(end_view(end))
        if is_open and progress is not None:
            running = ", ".join(progress["running"]) or "the model"
            _terminal.out.print(f"step {progress['step']} of {progress['max_steps']}; waits for {running}", style="dim")
    if unanswered:
        _terminal.say(f"its steps cannot be read now: no worker that serves it answers ({unanswered})")
    return _terminal.OK if end.completed or is_open else _terminal.NOT_COMPLETED


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
