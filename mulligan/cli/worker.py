"""`mulligan worker`: serve agents."""

from __future__ import annotations

from typing import Annotated

import typer


def worker(
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="A module with agents of your own; may be given again."),
    ] = None,
    task_queue: Annotated[str | None, typer.Option(help="Where runs are served.", show_default="agents")] = None,
) -> None:
    """Serve agents until Ctrl-C: the shipped ones, and every Agent, workflow and activity of the modules named.

    Example: `mulligan worker --load shop.agents`

    Exit code: 2 where a declaration or a setting cannot work, or no Temporal server answers; 1 where the worker stopped by
    itself. One sentence on stderr says why.
    """
    from mulligan.worker.process import main

    if code := main(load or [], task_queue):
        raise typer.Exit(code)
