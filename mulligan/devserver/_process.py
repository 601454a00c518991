"""Processes and folders that do not outlive this process, however it ends.

A SIGKILL, or a SIGTERM that nobody handles, runs no `finally` of ours. So a small shell holds the other end of a pipe:
when we are gone it reads the end of the file and clears up. POSIX only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

# The watch is there before the command begins, and in its group: there is no moment in which nobody would end what the
# command starts, and the group's number is nobody else's as long as the watch is in it.
_WATCHED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 "-$$"; } >/dev/null 2>&1 & exec "$@" 3<&-'
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
    _must_be_a_program(command[0])
    theirs, ours = os.pipe()
    with os.fdopen(theirs), os.fdopen(ours, "wb") as held:

        async def end(process: asyncio.subprocess.Process) -> None:
            held.close()
            # Reads what is left, too: a pipe that was never read to its end is never closed.
            await process.communicate()

        started = _started(
            end,
            _WATCHED,
            *command,
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=cwd,
            env=env,
            limit=_LONGEST_LINE,
        )
        async with started as process:
            yield process


def _must_be_a_program(command: str | Path) -> None:
    # Asked here: the shell that starts it would only say so in its own words.
    if shutil.which(command) is None:
        why = errno.EACCES if Path(command).exists() else errno.ENOENT
        raise OSError(why, os.strerror(why), str(command))


@asynccontextmanager
async def scratch_folder(parent: Path, prefix: str) -> AsyncIterator[Path]:
    """A new folder that is gone afterwards, with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    started = _started(
        _tell_to_end,
        _REMOVE,
        folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.pathsep.join((os.environ.get("PATH", ""), os.defpath))},
    )
    async with started:
        yield folder


async def _tell_to_end(shell: asyncio.subprocess.Process) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        await shell.communicate(b"\n")


@asynccontextmanager
async def _started(
    end: Callable[[asyncio.subprocess.Process], Awaitable[None]], script: str, *arguments: str | Path, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a shell in a session of its own, and end it by `end`; so too if we are cancelled while it starts.

    asyncio would then kill the shell, which could not clear up any more, and might wait for ever for its end (Python
    3.11: `process_exited` is only called once the pipes are connected).
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec("/bin/sh", "-c", script, "sh", *arguments, start_new_session=True, **options)
    )
    try:
        yield await asyncio.shield(starting)
    finally:
        await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:
            await end(starting.result())
