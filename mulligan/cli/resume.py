"""`mulligan resume`: go on from a run that has ended."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, fail, run


def resume(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a run that has ended.")],
    prompt: Annotated[str | None, typer.Argument(help="What the agent is to do next.", show_default=False)] = None,
    id: Annotated[  # noqa: A002 - what Temporal calls it
        str | None, typer.Option(help="The new run's id.", show_default="ID-resumed")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="How many model calls the new run may make.", show_default="as before")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model.", show_default="as before")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end and print the output.")] = False,
    task_queue: Annotated[str | None, typer.Option(help="Where it is served.", show_default="as before")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a run that goes on where another one failed, was cancelled, terminated or stopped, or ran out of steps.

    It begins with that run's conversation: no call that has a result is made again, and of one that was cut off the model
    is told that it may or may not have done its work. A run that completed needs a prompt.

    Examples: `mulligan resume my-run`, `mulligan resume my-run "Try the other supplier." --max-steps 10 --wait`

    Exit code: 0 started (with --wait: completed), 1 it did not complete, 2 it cannot be resumed, or no server.
    """
    run(_resume(run_id, prompt, id, max_steps, model, task_queue, wait=wait, as_json=as_json))


async def _resume(
    earlier: str,
    prompt: str | None,
    new: str | None,
    max_steps: int | None,
    model: str | None,
    task_queue: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    from temporalio.exceptions import WorkflowAlreadyStartedError
    from temporalio.service import RPCError

    from mulligan.cli._started import say_started
    from mulligan.client.resume_run import PromptNeededError, ResumeError, default_workflow_id, resume_run
    from mulligan.errors import InvalidRunInputError

    client = await _terminal.connected()
    try:
        handle = await resume_run(
            client, earlier, prompt, id=new, max_steps=max_steps, model=model, task_queue=task_queue
        )
    except PromptNeededError as error:
        fail(f'{error} Example: mulligan resume {earlier} "Go on."')
    except ResumeError as error:
        fail(str(error))
    except InvalidRunInputError as error:
        fail(error.message)
    except WorkflowAlreadyStartedError:
        taken = new or default_workflow_id(earlier)
        fail(f"there is a run {taken!r} already; choose another --id, or see `mulligan show {taken}`.")
    except RPCError as error:
        fail(f"Temporal did not take the run: {error.message}")
    return await say_started(client, handle, wait=wait, as_json=as_json, resumed_from=earlier)
