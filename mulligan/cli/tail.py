"""`mulligan tail`: follow a run until it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.cli._runs import find_run, follow_to_end
from mulligan.cli._terminal import NOT_COMPLETED, OK, AsJson, connect_or_fail, fail, print_json

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

    from mulligan.client.read_run import RunEnd
    from mulligan.values import WaitingFor


async def tail(
    id: Annotated[str, typer.Argument(help="The run's id.")],  # noqa: A002 - what Temporal calls it
    since: Annotated[
        str, typer.Option(help="The token of an event, to continue after it.", show_default="the run's beginning")
    ] = "",
    as_events: Annotated[
        bool, typer.Option("--events", help="Print each event as JSON on a line, with its token.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Follow a run until it ends: text as the model writes it, tool calls, repairs, errors, waiting calls.

    Ctrl-C ends the command, not the run.

    Examples: `mulligan tail my-run`, `mulligan tail my-run --events --since 12`

    With --json: a line for each finished step, a line with `waiting_for` when the run waits, and a line for the end. With
    --events: a line for each event (docs/events.md); `--since` with the token of the last event continues there.

    Exit code: 0 completed, 1 it did not complete, 2 no such run.
    """
    from mulligan.cli._follow import run_continues
    from mulligan.cli._links import print_links_of_run

    if as_json and (as_events or since):
        fail("--json prints the finished steps, from the first one on; it cannot be used with --since or --events.")
    client = await connect_or_fail()
    handle = await find_run(client, id)
    await print_links_of_run(client, handle)
    if as_json or as_events:
        with run_continues(id):
            end = await (_print_steps(client, handle) if as_json else _print_events(client, handle, since))
    else:
        end = await follow_to_end(client, handle, to_stderr=False, since=since)
    return OK if end.completed else NOT_COMPLETED


async def _print_events(client: Client, handle: WorkflowHandle[Any, Any], since: str) -> RunEnd:
    from mulligan.client.event_position import EventTokenError
    from mulligan.client.follow_events import follow
    from mulligan.client.read_run import wait_for_end

    try:
        async for event in follow(client, handle.id, since=since):
            print_json(event.model_dump(mode="json"))
    except EventTokenError as error:
        fail(f"--since: {error}")
    return await wait_for_end(handle)


async def _print_steps(client: Client, handle: WorkflowHandle[Any, Any]) -> RunEnd:
    from mulligan.cli._follow import watch_waits
    from mulligan.client.read_run import RunEnd, follow_steps

    def print_wait(waiting: WaitingFor) -> None:
        print_json({"waiting_for": waiting.model_dump(mode="json")})

    end = RunEnd("running")
    watching = asyncio.create_task(watch_waits(client, handle.id, print_wait))
    try:
        async for step in follow_steps(client, handle):
            if isinstance(step, RunEnd):
                end = step
                print_json({"status": end.status, "result": end.result, "error": end.error})
            else:
                print_json(step)
    finally:
        watching.cancel()
    return end
