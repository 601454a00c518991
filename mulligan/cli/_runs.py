"""Shared by the commands that act on one run: find it, follow it to its end, report its start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from mulligan.cli._terminal import NOT_COMPLETED, OK, err, fail, out, print_json, print_line, print_progress, print_text
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

    from mulligan.client.read_run import RunEnd


async def find_run(client: Client, run_id: str) -> WorkflowHandle[Any, Any]:
    """The handle of a run; the command ends if there is no such run."""
    from temporalio.service import RPCError, RPCStatusCode

    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(run_id)
    try:
        await handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            fail(f"there is no run {run_id!r} on this server; see `mulligan list`.")
        raise
    return handle


async def find_open_run(client: Client, run_id: str) -> WorkflowHandle[Any, Any]:
    """The handle of an open run; the command ends if there is no such run, or it has ended."""
    if not await is_open_run(client, run_id):
        await fail_as_ended(client.get_workflow_handle(run_id))
    return client.get_workflow_handle(run_id)


async def is_open_run(client: Client, run_id: str) -> bool:
    """Whether a run is open; the command ends if there is no such run."""
    from temporalio.client import WorkflowExecutionStatus

    handle = await find_run(client, run_id)
    return (await handle.describe()).status == WorkflowExecutionStatus.RUNNING


async def fail_as_ended(handle: WorkflowHandle[Any, Any]) -> NoReturn:
    """End the command because the run is closed. A workflow of a user's own cannot be resumed."""
    from mulligan.wire.run_context import AGENT_WORKFLOW

    if (kind := (await handle.describe()).workflow_type) != AGENT_WORKFLOW:
        fail(f"the workflow {handle.id!r} ({kind}) has ended; `mulligan show {handle.id}` shows how.")
    fail(f"the run {handle.id!r} has ended; continue it in a new run with `mulligan resume {handle.id}`.")


async def report_start(
    client: Client, handle: WorkflowHandle[Any, Any], trace_id: str = "", *, wait: bool, as_json: bool, **fields: Any
) -> int:
    """Print the id of a run that was just started; with `wait` follow it, and print its output. Returns the exit code.

    Args:
        client: a client of the run's server.
        handle: the new run.
        trace_id: the trace that it joins, if it joins one.
        wait: whether to follow the run to its end.
        as_json: whether to print JSON.
        fields: more fields for the JSON.
    """
    from mulligan.cli._links import print_links
    from mulligan.cli._steps import as_text
    from mulligan.observe.trace_ids import trace_id_of_run

    run_id, first_run_id = handle.id, handle.first_execution_run_id or ""
    started = {"id": run_id, "run_id": first_run_id, **fields}
    if wait:
        print_progress(f"started {run_id}")
    elif as_json:
        print_json(started)
    else:
        print_line(printable(run_id))
    await print_links(client, run_id, first_run_id, trace_id or trace_id_of_run(run_id, first_run_id))
    if not wait:
        return OK
    end = await follow_to_end(client, client.get_workflow_handle(run_id), to_stderr=True)
    if as_json:
        print_json({**started, "status": end.status, "result": end.result, "error": end.error})
    elif end.result is not None and end.result.get("output") is not None:
        print_text(as_text(end.result["output"]))
    return OK if end.completed else NOT_COMPLETED


async def follow_to_end(
    client: Client, handle: WorkflowHandle[Any, Any], *, to_stderr: bool, since: str = ""
) -> RunEnd:
    """Print a run's events until it ends, and return how it ended. `since`: the token of an event to continue after."""
    from temporalio.client import WorkflowQueryFailedError

    from mulligan.cli._follow import RunFollower, run_continues
    from mulligan.cli._steps import end_view
    from mulligan.client.connect import explain_unreadable_data
    from mulligan.client.event_position import EventTokenError
    from mulligan.client.read_run import wait_for_end

    console = err if to_stderr else out
    follower = RunFollower(client, handle.id, console, since)
    try:
        with run_continues(handle.id):
            await follower.follow()
    except EventTokenError as error:
        fail(f"--since: {error}")
    except WorkflowQueryFailedError as error:
        explanation = explain_unreadable_data(error)
        fail(explanation or f"{handle.id!r} has no events ({error.message}); --json prints its steps.")
    end = await wait_for_end(handle)
    end_event = end
    if end.result and end.result.get("output") in follower.last_answers:
        end_event = replace(end, result={**end.result, "output": None})  # already printed, as the last answer
    console.print(end_view(end_event), soft_wrap=True)
    return end
