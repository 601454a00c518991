"""`mulligan tail`: a run's steps as they come, until it ends."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, put_json, run
from mulligan.follow import Ended


def tail(
    id: Annotated[str, typer.Argument(help="The run's id.")],  # noqa: A002 - what Temporal calls it
    as_json: AsJson = False,
) -> None:
    """Follow a run: its steps so far, then each new one, until it ends. Ctrl-C leaves it running.

    Example: `mulligan tail my-run`

    With --json: a line for each step, then one with the end. Exit code: 0 completed, 1 it did not complete, 2 no such run.
    """
    run(_tail(id, as_json=as_json))


async def _tail(run_id: str, *, as_json: bool) -> int:
    from mulligan.cli._links import say_links_of
    from mulligan.cli.show import find

    client = await _terminal.connected()
    handle = await find(client, run_id)
    await say_links_of(client, handle)
    end = await follow_to_the_end(client, handle, to_stderr=False, as_json=as_json)
    return _terminal.OK if end.completed else _terminal.NOT_COMPLETED


async def follow_to_the_end(client: Any, handle: Any, *, to_stderr: bool, as_json: bool) -> Ended:
    """Print a run's steps as they come; returns how it ended."""
    from mulligan.cli._steps import end_view, step_view
    from mulligan.follow import follow

    console = _terminal.err if to_stderr else _terminal.out
    end = Ended("running")
    async for news in follow(client, handle):
        if isinstance(news, Ended):
            end = news
            if as_json:
                put_json({"status": end.status, "result": end.result, "error": end.error})
            else:
                console.print(end_view(end))
        elif as_json:
            put_json(news)
        else:
            console.print(step_view(news))
    return end
