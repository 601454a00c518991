"""The Typer application with all commands. What a command needs is imported when it runs, so that --help is fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from mulligan.cli._terminal import CommandApp, Commands, escape_output
from mulligan.cli.agents import agents
from mulligan.cli.answer import answer
from mulligan.cli.approve import approve
from mulligan.cli.cancel import cancel
from mulligan.cli.codec_server import codec_server
from mulligan.cli.content import content
from mulligan.cli.demo import demo
from mulligan.cli.deny import deny
from mulligan.cli.dev import dev
from mulligan.cli.doctor import doctor
from mulligan.cli.export import export
from mulligan.cli.fork import fork
from mulligan.cli.list_runs import list_runs
from mulligan.cli.mcp import mcp
from mulligan.cli.new import new
from mulligan.cli.pending import pending
from mulligan.cli.rerun import rerun
from mulligan.cli.resume import resume
from mulligan.cli.schedule import schedule
from mulligan.cli.send import send
from mulligan.cli.serve import serve
from mulligan.cli.show import show
from mulligan.cli.start import start
from mulligan.cli.stop import stop
from mulligan.cli.tail import tail
from mulligan.cli.worker import worker
from mulligan.features import OWN

app = CommandApp(
    cls=Commands,
    help="Durable agents on Temporal: try a demo, serve agents, start runs and follow them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_NAMES = {"list_runs": "list", "evaluate": "eval"}
"""The names of commands whose functions would hide something of Python's."""
_OF_FEATURES: list[Any] = [each for parts in OWN for each in parts.commands or ()]
for each in (
    *(
        demo,
        new,
        dev,
        doctor,
        worker,
        start,
        resume,
        fork,
        rerun,
        export,
        show,
        tail,
        list_runs,
        pending,
        approve,
        deny,
        answer,
    ),
    *(send, stop, cancel, agents, serve, codec_server, *_OF_FEATURES),
):
    app.command(_NAMES.get(each.__name__))(each)
app.add_typer(schedule, name="schedule")
app.add_typer(content, name="content")
app.add_typer(mcp, name="mcp")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"mulligan {version('mulligan')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """The options before a command."""


def main() -> None:
    """The entry point of the command `mulligan`."""
    escape_output()
    run_and_exit(app)


def run_and_exit(main: Callable[[], object]) -> NoReturn:
    """Run a program's main function and end the process with its exit code, without tearing the interpreter down.

    temporalio 1.35 on Python 3.11 sometimes crashes (SIGSEGV) in an interpreter that ends soon after a call of its client,
    which would change the exit code. `main` must close what it opened.
    """
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
