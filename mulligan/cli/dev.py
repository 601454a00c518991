"""`mulligan dev`: Temporal's dev server, embedded."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, fail, put_json, run, say


def dev(
    port: Annotated[int, typer.Option(help="Where clients and workers connect.")] = 7233,
    ui_port: Annotated[int | None, typer.Option(help="Where its web UI is.", show_default="port + 1000")] = None,
    db: Annotated[Path | None, typer.Option(help="A SQLite file that keeps the runs; in memory without.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run Temporal's dev server with its UI, on this machine only, until Ctrl-C.

    Example: `mulligan dev --db runs.db`
    """
    run(_dev(port, (port + 1000 if port else 0) if ui_port is None else ui_port, db, as_json=as_json))


async def _dev(port: int, ui_port: int, db: Path | None, *, as_json: bool) -> int:
    from mulligan.devserver import DevServerError

    stop = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    serving = asyncio.create_task(_serve(port, ui_port, db, as_json=as_json))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    # It may be building the server still: that ends with it, and leaves nothing behind.
    serving.cancel()
    try:
        await serving
    except DevServerError as error:
        fail(str(error))
    except asyncio.CancelledError:
        say("stopped")
    return _terminal.OK


async def _serve(port: int, ui_port: int, db: Path | None, *, as_json: bool) -> None:
    from mulligan.devserver import temporal_server

    async with temporal_server(port=port, ui_port=ui_port, db=db, progress=say) as running:
        if as_json:
            put_json({"address": running.address, "namespace": running.namespace, "ui_url": running.ui_url})
        else:
            lines = f"Temporal: {running.address}  (namespace {running.namespace})\nUI:       {running.ui_url}"
            _terminal.out.print(lines, markup=False, soft_wrap=True)
        say("Ctrl-C ends it." + ("" if db else " Runs are kept in memory; --db FILE keeps them."))
        await asyncio.Event().wait()
