"""`mulligan dev`: run Temporal's dev server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from mulligan.cli._terminal import (
    NOT_COMPLETED,
    OK,
    WRONG_USE,
    AsJson,
    fail,
    print_json,
    print_line,
    print_progress,
)


async def dev(
    port: Annotated[int, typer.Option(help="The port for clients and workers; 0: a free port.")] = 7233,
    ui_port: Annotated[
        int | None, typer.Option(help="The port of the web UI; 0: a free port.", show_default="port + 1000")
    ] = None,
    db: Annotated[
        Path | None,
        typer.Option(
            help="A SQLite file to store the runs in. Without it they are in memory only.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run Temporal's dev server with its web UI until Ctrl-C. Only this machine can reach it.

    Example: `mulligan dev --db runs.db`

    Exit code: 0 after Ctrl-C or SIGTERM; 1 if the server ended by itself; 2 if it did not start.
    """
    from mulligan.devserver import DevServerError, ServerEndedError

    ui_port = (port + 1000 if port else 0) if ui_port is None else ui_port
    stop = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    serving = asyncio.create_task(_serve(port, ui_port, db, as_json=as_json))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    # The server may still be fetched: cancelling ends that too, and removes its files.
    serving.cancel()
    try:
        await serving
    except DevServerError as error:
        fail(str(error), NOT_COMPLETED if isinstance(error, ServerEndedError) else WRONG_USE)
    except asyncio.CancelledError:
        print_progress("stopped")
    return OK


async def _serve(port: int, ui_port: int, db: Path | None, *, as_json: bool) -> None:
    from mulligan.devserver import temporal_server

    async with temporal_server(port=port, ui_port=ui_port, db=db, progress=print_progress) as running:
        if as_json:
            print_json({"address": running.address, "namespace": running.namespace, "ui_url": running.ui_url})
        else:
            lines = f"Temporal: {running.address}  (namespace {running.namespace})\nUI:       {running.ui_url}"
            print_line(lines)
        print_progress("Ctrl-C stops it." + ("" if db else " Runs are in memory only; --db FILE stores them."))
        await running.until_ended()
