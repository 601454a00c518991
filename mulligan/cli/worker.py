"""`mulligan worker`: serve agents."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._terminal import Modules


def worker(
    load: Modules = None,
    with_shipped: Annotated[
        bool, typer.Option("--with-shipped", help="Also serve the agents that come with Mulligan.")
    ] = False,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue that the worker polls.", show_default="agents")
    ] = None,
) -> None:
    """Serve all agents, workflows and activities of the loaded modules until Ctrl-C.

    With no module named, the agents that come with Mulligan are served: `assistant` and `demo`.

    Example: `mulligan worker --load shop.agents`

    Exit code: 2 if a declaration or a setting is invalid, or no Temporal server answers; 1 if the worker stopped because of
    an error. One sentence on stderr says why.
    """
    from mulligan.worker.process import main

    if code := main(load or [], task_queue, with_shipped=with_shipped):
        raise typer.Exit(code)
