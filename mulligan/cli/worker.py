"""`mulligan worker`: serve agents."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._terminal import AgentFiles, Modules, fail, leave_output


def worker(
    load: Modules = None,
    agents: AgentFiles = None,
    with_shipped: Annotated[
        bool, typer.Option("--with-shipped", help="Also serve the agents that come with Mulligan.")
    ] = False,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue that the worker polls.", show_default="agents")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="How many worker processes to run under a supervisor, which replaces those that die.",
            show_default="MULLIGAN_PROCESSES; one, without a supervisor",
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: start again when a Python file below this folder changes."),
    ] = False,
) -> None:
    """Serve all agents, workflows and activities of the loaded modules until Ctrl-C.

    With no module named, the agents that come with Mulligan are served: `assistant` and `demo`.

    With `--agents DIR`, each file `NAME.md` of the folder is an agent as well, served as it is now: a change needs no
    restart. What is wrong with a file is said on stderr, and the version before stays in service.

    With `--processes N`, N processes serve them. If one dies, a supervisor tells Temporal at once which calls were lost, so
    that their runs continue in another process, and starts a new one.

    With `--reload`, open runs continue with the changed code; calls that are running get 2 s to end
    (`MULLIGAN_GRACE_SECONDS`). It needs the extra `reload`.

    Examples: `mulligan worker --load shop.agents --processes 4`, `mulligan worker --load shop.tools --agents prompts`,
    `mulligan worker --load shop.agents --reload`

    Exit code: 2 if a declaration or a setting is invalid, or no Temporal server answers; 1 if the worker stopped because of
    an error. One sentence on stderr says why.
    """
    from mulligan.worker.fork_server import is_fork_server, serve_forks
    from mulligan.worker.supervisor_link import is_supervised

    leave_output()
    if is_fork_server():
        serve_forks(load or [], with_shipped=with_shipped, agents=agents)  # returns in each worker process
    if reload:
        raise typer.Exit(_reload(load or [], task_queue, processes, agents, with_shipped=with_shipped))
    chosen = None if is_supervised() else _processes(processes)
    if chosen is None:
        from mulligan.worker.process import main

        code = main(load or [], task_queue, with_shipped=with_shipped, agents=agents)
    else:
        from mulligan.supervisor.supervisor import supervise

        code = supervise(chosen)
    if code:
        raise typer.Exit(code)


def _reload(
    load: list[str], task_queue: str | None, processes: int | None, agents: str | None, *, with_shipped: bool
) -> int:
    from mulligan.extras import require_extra

    if processes is not None:
        fail(
            "--reload and --processes do not go together: leave out --reload in production, --processes in development."
        )
    require_extra("reload", "mulligan worker --reload")
    from mulligan.supervisor.reload_on_change import reload_on_change

    options = [word for module in load for word in ("--load", module)]
    options += ["--with-shipped"] if with_shipped else []
    options += ["--agents", agents] if agents is not None else []
    return reload_on_change([*options, *(["--task-queue", task_queue] if task_queue is not None else [])])


def _processes(option: int | None) -> int | None:
    """How many processes to supervise; None for a single worker without a supervisor."""
    from mulligan.client.settings import MAX_PROCESSES, settings

    if option is not None and not 1 <= option <= MAX_PROCESSES:
        fail(f"--processes is {option}, but it must be from 1 to {MAX_PROCESSES}.")
    return option or settings().processes
