"""Download the dev server with the Temporal SDK's own downloader: for platforms without a wheel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.testing import WorkflowEnvironment

from mulligan.devserver._cache import SECONDS_BETWEEN_LINES, VERSION, FetchError

SECONDS_WITHOUT_DATA = 30.0
"""The download fails after this time without a new byte. A slow download may take as long as it needs."""

_UNFINISHED = ".downloading"


@cache
def quiet_runtime() -> Runtime:
    """A runtime of the SDK that logs nothing: a server that does not answer is an expected result here, not a warning.

    It also leaves the SDK's default runtime unset, so that the program can still set its own.
    """
    return Runtime(telemetry=TelemetryConfig(logging=None))


async def download_temporal(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Let the SDK download the program into `scratch`; returns the file.

    Raises:
        FetchError: the network cannot be reached, or the download stalled.
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
        # The SDK cannot download without starting the server. Whether the server started does not matter here.
        (result,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(result, WorkflowEnvironment):
            await result.shutdown()
    downloaded = _downloaded(scratch)
    if downloaded is None:
        raise FetchError(_reason(result))
    return downloaded


def _downloaded(scratch: Path) -> Path | None:
    # The SDK chooses the name of the file, and the folder contains nothing else.
    return next((file for file in scratch.iterdir() if file.is_file() and file.suffix != _UNFINISHED), None)


def _size(scratch: Path) -> int:
    return sum(file.stat().st_size for file in scratch.iterdir())


async def _wait_while_it_grows(
    starting: asyncio.Future[WorkflowEnvironment], scratch: Path, progress: Callable[[str], None]
) -> None:
    size, grew, reported = 0, time.monotonic(), time.monotonic()
    while not starting.done():
        await asyncio.wait({starting}, timeout=1)
        now = time.monotonic()
        if (present := _size(scratch)) != size:
            size, grew = present, now
        if now - grew > SECONDS_WITHOUT_DATA:
            return
        if now - reported >= SECONDS_BETWEEN_LINES:
            progress(f"downloading Temporal's dev server {VERSION}: {size / 1e6:.0f} MB")
            reported = now


def _reason(result: object) -> str:
    if isinstance(result, asyncio.CancelledError):
        return f"no data arrived for {SECONDS_WITHOUT_DATA:.0f} s"
    # The SDK's text is a chain of causes; only the last one names the address or the system's error.
    return str(result).removeprefix("Failed starting Temporal dev server: ")
