"""What a command that started a run says of it, and how it waits for its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mulligan.cli import _terminal
from mulligan.cli._terminal import put_json, say

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle


async def say_started(
    client: Client, handle: WorkflowHandle[Any, Any], trace_id: str = "", *, wait: bool, as_json: bool, **more: Any
) -> int:
    """Print the id of a run that was just started, or with `wait` its output at its end. Returns the exit code.

    `trace_id`: where it is not the run's own. `more` goes into the JSON.
    """
    from mulligan.cli._links import say_links
    from mulligan.cli._steps import as_text
    from mulligan.cli.tail import follow_to_the_end
    from mulligan.observe.trace_ids import trace_id_of_run

    run_id, first_run_id = handle.id, handle.first_execution_run_id or ""
    started = {"id": run_id, "run_id": first_run_id, **more}
    if not wait:
        put_json(started) if as_json else _terminal.out.print(run_id, markup=False, soft_wrap=True)
    else:
        say(f"started {run_id}")
    await say_links(client, run_id, first_run_id, trace_id or trace_id_of_run(run_id, first_run_id))
    if not wait:
        return _terminal.OK
    end = await follow_to_the_end(client, client.get_workflow_handle(run_id), to_stderr=True)
    if as_json:
        put_json({**started, "status": end.status, "result": end.result, "error": end.error})
    elif end.result is not None and end.result.get("output") is not None:
        sys.stdout.write(as_text(end.result["output"]) + "\n")
    return _terminal.OK if end.completed else _terminal.NOT_COMPLETED
