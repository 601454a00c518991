"""Find the program of Temporal's dev server on this machine, or download or build it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from mulligan.devserver._cache import FetchError, cached_temporal, locked_scratch_folder
from mulligan.devserver._process import process_group
from mulligan.devserver.build import build_temporal
from mulligan.devserver.download import download_temporal

_VERSION_TIMEOUT = 30
"""Seconds within which `temporal --version` must answer."""


class DevServerError(Exception):
    """There is no dev server. The message is one sentence for the terminal that says why."""


class NoDevServerError(DevServerError):
    """No `temporal` program was found, downloaded or built. The message says what was tried, and what to install."""


async def find_temporal(progress: Callable[[str], None]) -> Path:
    """Return the `temporal` program: from PATH, else from the cache folder, else downloaded or built into that folder.

    `progress` gets a line of text every few seconds while this takes long.

    Raises:
        NoDevServerError: none of these worked.
    """
    tried = []
    on_path = shutil.which("temporal")
    if on_path is None:
        tried.append("`temporal` is not on PATH")
    elif await _works(Path(on_path)):
        return Path(on_path)
    else:
        # For example a version manager's shim without a version, a program for another system, or another program.
        tried.append(f"`{on_path} --version` does not print a Temporal version")
    cached = cached_temporal()
    if await _works(cached):
        return cached
    tried.append(f"there is none at {cached}")
    try:
        async with locked_scratch_folder(cached, progress) as scratch:
            # Another process may have fetched it while this one waited for the lock.
            if not await _works(cached):
                os.replace(await _fetch(scratch, progress, tried), cached)
    except FetchError as error:
        tried.append(str(error))
        raise NoDevServerError(
            f"no Temporal dev server: {'; '.join(tried)}. Install Temporal's CLI (https://docs.temporal.io/cli) so "
            "that `temporal` is on PATH, or Go 1.25 or newer to build it, or set TEMPORAL_ADDRESS to a running server."
        ) from error
    return cached


async def _fetch(scratch: Path, progress: Callable[[str], None], tried: list[str]) -> Path:
    try:
        downloaded = await download_temporal(scratch, progress)
        if not await _works(downloaded):
            raise FetchError("the downloaded program does not run on this machine")
        return downloaded
    except FetchError as error:
        tried.append(f"the download failed ({error})")
        progress(f"the download failed ({error}); trying to build it")
    try:
        return await build_temporal(scratch, progress)
    except FetchError as error:
        raise FetchError(f"the build failed ({error})") from error


async def _works(program: Path) -> bool:
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT), process_group(program, "--version") as process:
            output, _ = await process.communicate()
    except (OSError, TimeoutError):
        return False
    return process.returncode == 0 and output.startswith(b"temporal version")
