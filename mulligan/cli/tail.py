"""`mulligan tail`: a run as it happens, until it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, fail, put_json, run
from mulligan.client.read_run import RunEnd


def tail(
    id: Annotated[str, typer.Argument(help="The run's id.")],  # noqa: A002 - what Temporal calls it
    since: Annotated[
        str, typer.Option(help="Go on after the event with this token.", show_default="its beginning")
    ] = "",
    as_events: Annotated[
        bool, typer.Option("--events", help="Each event as JSON, one a line, with its token.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a run until it ends: text as the model writes it, tool calls, repairs, recoveries, waits.

    Ctrl-C leaves it running.

    Examples: `mulligan tail my-run`, `mulligan tail my-run --events --since 12`

    With --json: a line for each whole step, then one with the end. With --events: a line for each event (docs/events.md);
    its token, given to --since, takes it up again there.

    Exit code: 0 completed, 1 it did not complete, 2 no such run.
    """
    if as_json and (as_events or since):
        fail("--json gives whole steps, from the first one on; --since and --events go without it.")
    run(_tail(id, since, as_events=as_events, as_json=as_json))


async def _tail(run_id: str, since: str, *, as_events: bool, as_json: bool) -> int:
    from mulligan.cli._links import say_links_of
    from mulligan.cli.show import find

    client = await _terminal.connected()
    handle = await find(client, run_id)
    await say_links_of(client, handle)
    if as_json:
        end = await _steps(client, handle)
    elif as_events:
        end = await _events(client, handle, since)
    else:
        end = await follow_to_the_end(client, handle, to_stderr=False, since=since)
    return _terminal.OK if end.completed else _terminal.NOT_COMPLETED


async def follow_to_the_end(client: Any, handle: Any, *, to_stderr: bool, since: str = "") -> RunEnd:
    """Print a run as it happens; returns how it ended."""
    from temporalio.client import WorkflowQueryFailedError

    from mulligan import events
    from mulligan.cli._live_view import LiveView
    from mulligan.cli._steps import end_view
    from mulligan.client.connect import explain_unreadable_data
    from mulligan.client.read_run import wait_for_end

    console = _terminal.err if to_stderr else _terminal.out
    view = LiveView(console, handle.id)
    try:
        async for event in events.follow(client, handle.id, since=since):
            view.show(event)
    except ValueError as error:
        fail(explain_unreadable_data(error) or f"--since: {error}")
    except WorkflowQueryFailedError as error:
        fail(
            explain_unreadable_data(error)
            or f"{handle.id!r} tells no events ({error.message}); --json shows its steps."
        )
    finally:
        view.end()
    end = await wait_for_end(handle)
    shown = end
    if end.result and end.result.get("output") == view.said:
        shown = replace(end, result={**end.result, "output": None})  # it stands there already
    console.print(end_view(shown))
    return end


async def _events(client: Any, handle: Any, since: str) -> RunEnd:
    import sys

    from mulligan import events
    from mulligan.client.read_run import wait_for_end

    try:
        async for event in events.follow(client, handle.id, since=since):
            sys.stdout.write(event.model_dump_json() + "\n")
            sys.stdout.flush()
    except ValueError as error:
        fail(f"--since: {error}")
    return await wait_for_end(handle)


async def _steps(client: Any, handle: Any) -> RunEnd:
    from mulligan.client.read_run import follow_steps

    end = RunEnd("running")
    async for news in follow_steps(client, handle):
        if isinstance(news, RunEnd):
            end = news
            put_json({"status": end.status, "result": end.result, "error": end.error})
        else:
            put_json(news)
    return end
