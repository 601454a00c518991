"""`mulligan worker`: serve agents."""

from __future__ import annotations

from typing import Annotated

import typer


def worker(
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE", help="A module with your agents; the option can be repeated.", show_default=False
        ),
    ] = None,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue that the worker polls.", show_default="agents")
    ] = None,
) -> None:
    """Serve agents until Ctrl-C: the built-in ones, and all agents, workflows and activities of the loaded modules.

    Example: `mulligan worker --load shop.agents`

    Exit code: 2 if a declaration or a setting is invalid, or no Temporal server answers; 1 if the worker stopped because of
    an error. One sentence on stderr says why.
    """
    from mulligan.worker.process import main

    if code := main(load or [], task_queue):
        raise typer.Exit(code)
