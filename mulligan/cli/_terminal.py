"""What every command shares: its output, its exit code, and its connection to Temporal."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

if TYPE_CHECKING:
    from temporalio.client import Client

out = Console(highlight=False)
"""Stdout: results."""
err = Console(stderr=True, highlight=False)
"""Stderr: progress and errors."""

OK, NOT_COMPLETED, WRONG_USE = 0, 1, 2
"""The exit codes."""

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        metavar="MODULE",
        help="A module with your agents, or several, separated by commas; the option can be repeated.",
        show_default="MULLIGAN_LOAD",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]


def printable(text: str) -> str:
    """A text of one line, with an escape for each character that a terminal would interpret, or not show.

    A model may have written the names, ids and texts that are printed. It must not change colours or text direction.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_line(line: str) -> None:
    """Print a line of results as plain text."""
    out.print(line, markup=False, soft_wrap=True)


def print_progress(line: str) -> None:
    """Print a line of progress on stderr."""
    err.print(printable(line), markup=False, style="dim", soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def fail(sentence: str, code: int = WRONG_USE) -> NoReturn:
    """End the command with a sentence on stderr."""
    err.print(f"error: {printable(sentence)}", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def run_command(work: Coroutine[Any, Any, int | None]) -> NoReturn:
    """Run a command's coroutine, and end the command with the exit code that it returns."""
    try:
        code = asyncio.run(work)
    except Exception as error:
        from mulligan.client.connect import explain_unreadable_data

        if not (sentence := explain_unreadable_data(error)):
            raise
        fail(sentence)
    raise typer.Exit(code or OK)


async def connect_or_fail() -> Client:
    """A client. If it cannot connect, the command ends: the error names the address and how to start a server."""
    from mulligan.client.connect import connect, explain_connection_error
    from mulligan.ended_runs.query_interceptor import with_ended_runs
    from mulligan.errors import DeclarationError

    try:
        return with_ended_runs(await connect())
    except DeclarationError as error:
        fail(str(error))
    except (RuntimeError, ValueError, OSError) as error:
        fail(explain_connection_error(error))
