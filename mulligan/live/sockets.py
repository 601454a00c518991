"""The live channel on one machine: each worker process listens at a Unix socket of its own, and servers connect to all."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from mulligan.live.publisher import Outbox, Publisher
from mulligan.live.socket_folder import SUFFIX, UnusableFolderError, check_folder
from mulligan.live.subscriptions import Subscriptions
from mulligan.wire.live_frames import (
    MOST_LINE_BYTES,
    MOST_WATCH_BYTES,
    Seal,
    ServerFrame,
    line_of,
    server_frame,
    worker_frame,
    worker_line,
)

MOST_UNREAD_BYTES = 64 * 1024
"""Of a subscriber. Beyond it, only what has changed is remembered, until it reads."""
MOST_UNSENT_BYTES = 2 * 1024 * 1024
"""To a worker that does not read what is watched: it is frozen. Its connection is closed, and tried again."""
SECONDS_BETWEEN_LOOKS, SECONDS_UNTIL_AGAIN = 0.3, 3.0
"""Until a server finds a new worker, and until it tries one again that has closed the connection: it may have too many."""
_SECONDS_TO_CONNECT = 1.0
_MOST_WORKERS = 1_000


@asynccontextmanager
async def listening(publisher: Publisher, folder: Path, seal: Seal | None = None) -> AsyncIterator[None]:
    """Serve what is published, at a new socket in the folder, while the block runs. `seal`: encrypts it.

    Raises:
        UnusableFolderError: the folder cannot be used.
    """
    check_folder(folder, create=True)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
    draft = path.with_suffix(".new")  # a socket that does not listen yet would be taken for that of a dead process
    writers: set[asyncio.StreamWriter] = set()
    with socket.socket(socket.AF_UNIX) as bound:
        try:
            bound.bind(str(draft))
            serve = partial(_serve, publisher, seal, writers)
            server = await asyncio.start_unix_server(serve, sock=bound, limit=MOST_WATCH_BYTES)
            draft.rename(path)
        except OSError as error:
            raise UnusableFolderError(f"{folder}: {error.strerror}") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            server.close()
            for writer in writers:
                writer.close()


async def _serve(
    publisher: Publisher,
    seal: Seal | None,
    writers: set[asyncio.StreamWriter],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Serve one subscriber."""
    outbox = publisher.subscribe() if _is_own(writer) else None
    if outbox is None:
        writer.close()
        return
    writers.add(writer)
    writer.transport.set_write_buffer_limits(high=MOST_UNREAD_BYTES)
    sending = asyncio.create_task(_send(outbox, seal, writer))
    try:
        async for line in reader:
            if (frame := server_frame(line)) is not None:
                outbox.take(frame)
    except (OSError, ValueError, asyncio.CancelledError):
        pass  # it has died, its line is too long, or this process ends: asyncio logs the cancellation of such a task
    finally:
        publisher.leave(outbox)
        sending.cancel()
        writers.discard(writer)
        writer.close()


async def _send(outbox: Outbox, seal: Seal | None, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while True:
            await outbox.changed.wait()
            for frame in outbox.frames():
                writer.write(worker_line(frame, seal))
                await writer.drain()


async def connect_to_all(folder: Path, subscriptions: Subscriptions, seal: Seal | None = None) -> None:
    """Keep a link to each worker that listens in the folder, until it is cancelled. `seal`: decrypts what they tell."""
    links: dict[Path, asyncio.Task[None]] = {}
    refused: set[Path] = set()
    try:
        while True:
            found = _sockets(folder)
            refused &= found
            for path in found - links.keys() - refused:
                if len(links) < _MOST_WORKERS:
                    links[path] = asyncio.create_task(_read(path, subscriptions, seal, refused))
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            links = {path: task for path, task in links.items() if not task.done()}
    finally:
        for task in links.values():
            task.cancel()


def _sockets(folder: Path) -> set[Path]:
    try:
        check_folder(folder)
        return {each for each in folder.iterdir() if each.suffix == SUFFIX}
    except (OSError, UnusableFolderError):  # no worker has made it yet
        return set()


async def _read(path: Path, subscriptions: Subscriptions, seal: Seal | None, refused: set[Path]) -> None:
    """Read what a worker tells. `refused`: takes its path if it is nobody to talk to."""
    try:
        async with asyncio.timeout(_SECONDS_TO_CONNECT):
            reader, writer = await asyncio.open_unix_connection(str(path), limit=MOST_LINE_BYTES)
    except ConnectionRefusedError:
        with suppress(OSError):
            os.unlink(path)  # its process has died
        return
    except OSError:  # also the time limit
        return
    link = _SocketLink(writer)
    try:
        if not _is_own(writer):
            refused.add(path)
            return
        subscriptions.add(link)
        async for line in reader:
            if (frame := worker_frame(line, seal)) is not None:
                subscriptions.take(frame, link)
    except OSError:
        pass
    except ValueError:  # a line that is too long
        refused.add(path)
    finally:
        subscriptions.remove(link)
        writer.close()
    await asyncio.sleep(SECONDS_UNTIL_AGAIN)


class _SocketLink:
    """A connection to one worker."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, frame: ServerFrame) -> None:
        """Send a frame, unless the worker reads none."""
        if self._writer.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self._writer.transport.abort()
        elif not self._writer.is_closing():
            self._writer.write(line_of(frame))


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Whether the process at the other end is one of this user's."""
    if not hasattr(socket, "SO_PEERCRED"):
        return False
    credentials = struct.Struct("3i")
    told = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    _, uid, _ = credentials.unpack(told)
    return bool(uid == os.getuid())
