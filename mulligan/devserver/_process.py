"""Processes and folders that do not outlive this process, however it ends.

A SIGKILL, or a SIGTERM that nobody handles, runs no `finally` of ours. So a small shell holds the other end of a pipe:
when we are gone it reads the end of the file and clears up. POSIX only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_KILL_GROUP = 'read -r _ || kill -9 "-$1"'
# Twice, as processes that are being killed may still be writing there.
_REMOVE = 'read -r _; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }'
_LONGEST_LINE = 1 << 20


@asynccontextmanager
async def process_group(
    *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command in a group of its own, stdin empty, stderr joined to the stdout pipe; kill the group at the end.

    The group is apart from ours so that a Ctrl-C in the terminal is for us alone: we say when the command stops.

    Raises:
        OSError: the command cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cwd,
        env=env,
        start_new_session=True,
        limit=_LONGEST_LINE,
    )
    try:
        async with _when_we_are_gone(_KILL_GROUP, str(process.pid)):
            try:
                yield process
            finally:
                # Before the watch ends, so that there is no moment in which nobody would.
                _kill_group(process)
    finally:
        _kill_group(process)
        # Reads what is left, too: a pipe that was never read to its end is never closed.
        await process.communicate()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    # Once it has ended its number may be somebody else's.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@asynccontextmanager
async def scratch_folder(parent: Path, prefix: str) -> AsyncIterator[Path]:
    """A new folder that is gone afterwards, with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    async with _when_we_are_gone(_REMOVE, str(folder)):
        yield folder


@asynccontextmanager
async def _when_we_are_gone(script: str, argument: str) -> AsyncIterator[None]:
    """Run the shell script, whose first `read` returns when the block ends (a line) or this process does (no line)."""
    shell = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        script,
        "sh",
        argument,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.pathsep.join((os.environ.get("PATH", ""), os.defpath))},
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(BrokenPipeError, ConnectionResetError):
            await shell.communicate(b"\n")
