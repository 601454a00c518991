"""`mulligan resume`: continue an ended run in a new one."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._runs import report_start
from mulligan.cli._terminal import AsJson, connect_or_fail, fail


async def resume(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a run that has ended.")],
    prompt: Annotated[str | None, typer.Argument(help="The next message to the agent.", show_default=False)] = None,
    id: Annotated[  # noqa: A002 - what Temporal calls it
        str | None, typer.Option(help="The new run's id.", show_default="ID-resumed")
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="The maximum number of model calls of the new run.", show_default="as before"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model.", show_default="as before")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end and print its output.")] = False,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue of the workers.", show_default="as before")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Start a new run that continues a run which failed, was cancelled, terminated or stopped, or ran out of steps.

    The new run begins with the conversation of the earlier one. Calls with a result are not repeated. For a call that was
    interrupted, the model is informed that it may or may not have done its work. A run that completed needs a prompt.

    A run is continued once: the same command again returns that continuation, and another prompt or option is refused. With
    --id it is continued once more, under that id.

    Examples: `mulligan resume my-run`, `mulligan resume my-run "Try the other supplier." --max-steps 10 --wait`

    Exit code: 0 started (with --wait: completed), 1 it did not complete, 2 it cannot be resumed, or no server.
    """
    from mulligan.client.origins.resume_run import PromptNeededError, resume_run

    client = await connect_or_fail()
    try:
        handle = await resume_run(
            client, run_id, prompt, id=id, max_steps=max_steps, model=model, task_queue=task_queue
        )
    except PromptNeededError as error:
        fail(f'{error} Example: mulligan resume {run_id} "Go on."')
    return await report_start(client, handle, wait=wait, as_json=as_json, resumed_from={"id": run_id})
