"""`mulligan start`: start a run."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any

import typer

from mulligan.cli import _terminal
from mulligan.cli._given import json_object
from mulligan.cli._terminal import AsJson, fail, run


def start(
    agent: Annotated[str | None, typer.Argument(help="The agent's name.", show_default=False)] = None,
    prompt: Annotated[str | None, typer.Argument(help="What it is to do.", show_default=False)] = None,
    id: Annotated[str | None, typer.Option(help="The run's id; one is made up if you give none.")] = None,  # noqa: A002
    max_steps: Annotated[int | None, typer.Option(help="How many model calls it may make.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the agent's own.")] = None,
    input: Annotated[  # noqa: A002 - the contract's name
        str | None,
        typer.Option(help="The run's input as JSON (`-`: from stdin, `@FILE`: from a file). Words above win over it."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end and print the output.")] = False,
    task_queue: Annotated[str | None, typer.Option(help="Where it is served.", show_default="agents")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a run and print its id.

    Example: `mulligan start assistant "What is in the workspace?" --wait`

    Exit code: 0 started (with --wait: completed), 1 it did not complete, 2 wrong use or no server.
    """
    from mulligan.client.settings import settings
    from mulligan.errors import DeclarationError, InvalidRunInputError
    from mulligan.run_input import check

    given = {} if input is None else json_object(input, "--input", '{"metadata": {"team": "a"}}')
    said = {"agent": agent, "prompt": prompt, "max_steps": max_steps, "model": model}
    given |= {name: value for name, value in said.items() if value is not None}
    if max_steps is not None:
        given.pop("maxSteps", None)
    try:
        check(json.dumps(given).encode())
        queue = task_queue or settings().task_queue
    except (InvalidRunInputError, DeclarationError) as error:
        fail(getattr(error, "message", None) or str(error))
    run_id = id or f"{given['agent']}-{secrets.token_hex(4)}"
    run(_start(given, run_id, queue, wait=wait, as_json=as_json))


async def _start(given: dict[str, Any], run_id: str, queue: str, *, wait: bool, as_json: bool) -> int:
    from temporalio.exceptions import WorkflowAlreadyStartedError
    from temporalio.service import RPCError

    from mulligan.cli._started import say_started

    client = await _terminal.connected()
    try:
        handle = await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=queue)
    except WorkflowAlreadyStartedError:
        fail(f"a run with the id {run_id!r} is open; choose another --id, or see `mulligan show {run_id}`.")
    except RPCError as error:
        fail(f"Temporal did not take the run: {error.message}")
    joined = str(given.get("traceparent") or "").split("-")
    trace_id = joined[1] if len(joined) == 4 else ""
    return await say_started(client, handle, trace_id, wait=wait, as_json=as_json)
