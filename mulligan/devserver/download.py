"""The Temporal SDK's own download of the dev server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from temporalio.testing import WorkflowEnvironment

from mulligan.devserver._cache import SECONDS_BETWEEN_LINES, VERSION
from mulligan.devserver._runtime import quiet_runtime
from mulligan.devserver.errors import FetchError

PATIENCE_SECONDS = 30.0
"""Without one more byte. A slow line may take as long as it needs."""

_UNFINISHED = ".downloading"


async def download_temporal(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Let the SDK download the program into `scratch`; returns the file.

    Raises:
        FetchError: there is no way to the network, or the download stood still.
    """
    progress(f"downloading Temporal's dev server {VERSION}")
    starting = asyncio.ensure_future(
        WorkflowEnvironment.start_local(
            download_dest_dir=str(scratch), dev_server_download_version=f"v{VERSION}", runtime=quiet_runtime()
        )
    )
    try:
        await _wait_while_it_grows(starting, scratch, progress)
    finally:
        starting.cancel()
        # The SDK has no download alone: it starts what it downloaded, and whether that works is not the question here.
        (result,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(result, WorkflowEnvironment):
            await result.shutdown()
    downloaded = _downloaded(scratch)
    if downloaded is None:
        raise FetchError(_why(result))
    return downloaded


def _downloaded(scratch: Path) -> Path | None:
    # The SDK gives the file a name of its own, and nothing else is in here.
    return next((file for file in scratch.iterdir() if file.is_file() and file.suffix != _UNFINISHED), None)


def _size(scratch: Path) -> int:
    return sum(file.stat().st_size for file in scratch.iterdir())


async def _wait_while_it_grows(
    starting: asyncio.Future[WorkflowEnvironment], scratch: Path, progress: Callable[[str], None]
) -> None:
    size, grew, said = 0, time.monotonic(), time.monotonic()
    while not starting.done():
        await asyncio.wait({starting}, timeout=1)
        now = time.monotonic()
        if (present := _size(scratch)) != size:
            size, grew = present, now
        if now - grew > PATIENCE_SECONDS:
            return
        if now - said >= SECONDS_BETWEEN_LINES:
            progress(f"downloading Temporal's dev server {VERSION}: {size / 1e6:.0f} MB")
            said = now


def _why(result: object) -> str:
    if isinstance(result, asyncio.CancelledError):
        return f"nothing came for {PATIENCE_SECONDS:.0f} s"
    # The SDK's text is a chain of "what: what: why"; the last link alone names the address, or the system's reason.
    return str(result).removeprefix("Failed starting Temporal dev server: ")
