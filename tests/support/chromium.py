"""Debian's Chromium without windows, which Playwright drives: installed once where it is missing.

`chromium` has a process more for each window's own pages: a page takes 2.8 times the CPU of the headless shell's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from platformdirs import user_cache_path
from playwright.async_api import Browser, async_playwright

from mulligan.devserver._cache import FetchError, locked_scratch_folder
from tests.support.go_programs import Say, say_on_stderr

__all__ = ["browser", "find_chromium", "install_chromium"]

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one that is there."""
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
COMMANDS = (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", *PACKAGES))
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info", "--js-flags=--expose-gc")
"""As root, in a container, Chromium has no sandbox of its own; it opens pages of this test only."""


def find_chromium() -> str | None:
    """The path of the browser; None: there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


async def install_chromium(say: Say = say_on_stderr) -> str:
    """The path of the browser, which is installed with apt if there is none.

    Raises:
        FetchError: it cannot be installed here.
    """
    if found := find_chromium():
        return found
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise FetchError("there is no Chromium; install it (Debian: apt-get install chromium-headless-shell)")
    async with locked_scratch_folder(user_cache_path("mulligan") / "tests" / "chromium", say):
        for command in COMMANDS if find_chromium() is None else ():
            say(f"apt-get {' '.join(command)}")
            process = await asyncio.create_subprocess_exec(
                apt, *command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            out, _ = await process.communicate()
            if process.returncode:
                raise FetchError(f"apt-get {command[0]} failed: {out.decode(errors='replace')[-500:]}")
    found = find_chromium()
    if found is None:
        raise FetchError("apt-get has installed no chromium-headless-shell")
    return found


@asynccontextmanager
async def browser(program: str | Path) -> AsyncIterator[Browser]:
    """A running browser."""
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield running
        finally:
            await running.close()
