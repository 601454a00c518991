"""What every command shares: where its words go, how it connects, and how it ends."""

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
"""Results."""
err = Console(stderr=True, highlight=False)
"""Progress, and what went wrong."""

OK, NOT_COMPLETED, WRONG_USE = 0, 1, 2

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


def printable(text: str) -> str:
    """A text of one line, with an escape for each character that a terminal would obey, or not show.

    Names, ids and texts may be a model's: not the colour of a line, nor its direction, is theirs to choose.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(line: str) -> None:
    """A line of progress."""
    err.print(printable(line), markup=False, style="dim", soft_wrap=True)


def asked(question: str) -> str:
    """What the person at the keyboard answers; asked on stderr, as stdout is for results."""
    try:
        return err.input(question, markup=False).strip()
    except EOFError:
        err.print()
        return ""


def put_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def fail(sentence: str, code: int = WRONG_USE) -> NoReturn:
    """End the command with a sentence on stderr."""
    err.print(f"error: {printable(sentence)}", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def run(work: Coroutine[Any, Any, int | None]) -> NoReturn:
    """Run a command's coroutine; what it returns is the exit code."""
    try:
        code = asyncio.run(work)
    except Exception as error:
        from mulligan.client.connect import explain_unreadable_data

        if not (sentence := explain_unreadable_data(error)):
            raise
        fail(sentence)
    raise typer.Exit(code or OK)


async def connected() -> Client:
    """A client, or the end of the command: which address was tried, and how to start a server."""
    from mulligan.client.connect import connect, explain_connection_error
    from mulligan.errors import DeclarationError

    try:
        return await connect()
    except DeclarationError as error:
        fail(str(error))
    except (RuntimeError, ValueError, OSError) as error:
        fail(explain_connection_error(error))
