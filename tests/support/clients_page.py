"""The blocks of the pages of clients, and the programs of other people that run them, unmodified, from their registries."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

PAGES = [
    Path(__file__).parents[2] / "docs" / f"{name}.md"
    for name in ("clients", "clients-python", "clients-pages", "coding-agents")
]
SERVER = "http://127.0.0.1:8300"
"""The server's address on the pages."""
SECONDS = 180
"""Until a client has ended, or serves: with all that is installed on a new machine, before."""


def block(title: str, language: str, address: str) -> str:
    """The first block of a section in a language, with the address of a server in place of the one on the pages."""
    pages = "\n".join(page.read_text() for page in PAGES)
    section = pages.split(f"\n## {title}\n")[1].split("\n## ")[0].split("\n# ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None, (title, language)
    return found[1].replace(SERVER, address)


def python(*packages: str) -> list[str]:
    """The command of a Python that has these packages from PyPI, by their exact versions, in an environment of its own."""
    chosen = [word for package in packages for word in ("--with", package)]
    return ["uv", "run", "-q", "--no-project", "--python", "3.11", *chosen, "python"]


async def output(command: Sequence[str], folder: Path, **environment: str) -> str:
    """What a program prints. It fails the test if the program fails. Its home is the folder."""
    process = await _start(command, folder, environment)
    try:
        out, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        _end(process)
    assert process.returncode == 0, errors.decode()[-5_000:] or out.decode()[-5_000:]
    return out.decode()


@asynccontextmanager
async def serving(command: Sequence[str], folder: Path, **environment: str) -> AsyncIterator[None]:
    """Run a program while the block runs."""
    process = await _start(command, folder, environment)
    try:
        yield
    finally:
        _end(process)
        _, errors = await process.communicate()
        print(errors.decode()[-5_000:])  # pytest shows it where the test fails


async def _start(command: Sequence[str], folder: Path, environment: dict[str, str]) -> asyncio.subprocess.Process:
    # uv's own cache stays the user's, with what it has installed.
    known = {"PATH": os.environ["PATH"], "HOME": str(folder), "UV_CACHE_DIR": await _uv_cache()}
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    return await asyncio.create_subprocess_exec(
        *command, cwd=folder, env={**settings, **known, **environment}, start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


def _end(process: asyncio.subprocess.Process) -> None:
    """End a program with all processes that it has started."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


async def _uv_cache() -> str:
    process = await asyncio.create_subprocess_exec("uv", "cache", "dir", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode().strip()
