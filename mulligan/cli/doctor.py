"""`mulligan doctor`: is everything there that a run needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mulligan.cli._terminal import NOT_COMPLETED, OK, AgentFiles, AsJson, Modules, out, print_json
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from mulligan.doctor.finding import Finding, State

MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "problem": ("problem", "red"),
}


async def doctor(
    load: Modules = None,
    agents: AgentFiles = None,
    task_queue: Annotated[
        str | None,
        typer.Option(
            "--task-queue", help="The task queue whose workers are checked.", show_default="MULLIGAN_TASK_QUEUE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check all that runs need: the server, its workers, the models' endpoints, where traces go, clocks, versions.

    Each check is one line; each `warning` and `problem` says what to do. Keys are used, never printed. With modules, the
    models and task queues of their agents are checked; with a folder of agents, its files. No run is started.

    Example: `mulligan doctor --load shop`

    Exit code: 0 without problems (warnings may be there), 1 with a problem, 2 for wrong use.
    """
    from mulligan.client.settings import settings
    from mulligan.doctor.checks import check_agent_files, run_checks
    from mulligan.worker.agent_folder import agent_folder, names_in_folder
    from mulligan.worker.loading import load as load_modules
    from mulligan.worker.loading import modules_to_load

    configured = settings()
    is_named = load or configured.load or agents or configured.agents
    names = modules_to_load(configured.load, load or [], with_shipped=False) if is_named else []
    loaded = load_modules(names, file_names=names_in_folder(agents)) if names else None
    files = agent_folder(agents, loaded.registry) if loaded else None
    queue = task_queue or configured.task_queue
    of_files = await check_agent_files(files, queue) if files is not None else []
    findings = [*await run_checks(loaded, queue, files.elsewhere if files is not None else ()), *of_files]
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        _print(findings)
    return NOT_COMPLETED if any(finding.state == "problem" for finding in findings) else OK


def _print(findings: list[Finding]) -> None:
    width = max(len(printable(finding.check)) for finding in findings)
    for finding in findings:
        word, style = MARKS[finding.state]
        line = Text.assemble((f"{word:<7}", style), f"  {printable(finding.check):<{width}}  ", printable(finding.text))
        out.print(line, soft_wrap=True)
