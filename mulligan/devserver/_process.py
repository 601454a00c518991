"""Processes and folders that do not outlive this process, however it ends.

After a SIGKILL, or a SIGTERM without a handler, no `finally` runs. So a small shell reads from a pipe that this process
keeps open: when this process ends, the shell reads the end of the file and cleans up. POSIX only.
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

# The watching shell starts before the command, in the same process group. So whatever the command starts is always
# watched, and the group's number cannot be reused while the watching shell is in the group.
_WATCHED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 "-$$"; } >/dev/null 2>&1 & exec "$@" 3<&-'
# Twice, because processes that are being killed may still write there.
_REMOVE = 'read -r _; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }'
_LONGEST_LINE = 1 << 20


@asynccontextmanager
async def process_group(
    *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command in a process group of its own, with empty stdin and with stderr in the stdout pipe; kill the group at
    the end.

    The separate group means that Ctrl-C in the terminal reaches this process only, which then stops the command.

    Raises:
        OSError: the command cannot be started.
    """
    _must_be_a_program(command[0])
    theirs, ours = os.pipe()
    with os.fdopen(theirs), os.fdopen(ours, "wb") as held:

        async def end(process: asyncio.subprocess.Process) -> None:
            held.close()
            # This also reads the remaining output: a pipe that is not read to its end is never closed.
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
    # Checked here, because the shell that starts it would report this in its own words.
    if shutil.which(command) is None:
        why = errno.EACCES if Path(command).exists() else errno.ENOENT
        raise OSError(why, os.strerror(why), str(command))


@asynccontextmanager
async def scratch_folder(parent: Path, prefix: str) -> AsyncIterator[Path]:
    """A new folder, which is deleted at the end with everything in it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    started = _started(
        _end_by_input,
        _REMOVE,
        folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.pathsep.join((os.environ.get("PATH", ""), os.defpath))},
    )
    async with started:
        yield folder


async def _end_by_input(shell: asyncio.subprocess.Process) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        await shell.communicate(b"\n")


@asynccontextmanager
async def _started(
    end: Callable[[asyncio.subprocess.Process], Awaitable[None]], script: str, *arguments: str | Path, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a shell in a session of its own, and end it by `end`, also if the caller is cancelled while the shell starts.

    Without this, asyncio would kill the shell, which then could not clean up, and asyncio might wait forever for its end
    (Python 3.11 calls `process_exited` only after the pipes are connected).
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
