"""The live channel of a worker process: what it tells of its runs and model calls to watchers on this machine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from mulligan.client.live_channel import live_folder, live_seal
from mulligan.live.publisher import Publisher
from mulligan.live.socket_folder import UnusableFolderError
from mulligan.live.sockets import listening

_log = logging.getLogger("mulligan.worker")


def live_publisher() -> Publisher | None:
    """The publisher of a worker, by the settings; None: there is no channel."""
    return Publisher() if live_folder() is not None else None


@asynccontextmanager
async def publishing(publisher: Publisher | None) -> AsyncIterator[None]:
    """Let watchers hear it while the block runs. If they cannot, heartbeats serve, and the log says so."""
    folder = live_folder()
    if publisher is None or folder is None:
        yield
        return
    async with publisher.opened(), AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(listening(publisher, folder, live_seal()))
        except UnusableFolderError as error:
            _log.warning("Live text goes by heartbeats only: %s", error)
        yield
