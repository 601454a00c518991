"""The live channel as those who follow runs use it: connections to the workers of this machine, while a run is followed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from mulligan.client.encryption import FrameSeal, parse_keys
from mulligan.client.settings import settings
from mulligan.live.socket_folder import UnusableFolderError, check_folder, socket_folder
from mulligan.live.sockets import connect_to_all
from mulligan.live.subscriptions import Listener, Subscription, Subscriptions

_log = logging.getLogger(__name__)
_subscriptions: WeakKeyDictionary[asyncio.AbstractEventLoop, Subscriptions] = WeakKeyDictionary()


def live_folder() -> Path | None:
    """The folder of the channel's sockets, by the settings; None: there is no channel."""
    return socket_folder(os.environ) if settings().live == "local" else None


def live_seal() -> FrameSeal | None:
    """What encrypts the channel's frames, by the settings; None: there are no keys."""
    keys = settings().encryption_keys.get_secret_value()
    return FrameSeal(parse_keys(keys)) if keys else None


@contextmanager
def watching(workflow_id: str, listener: Listener) -> Iterator[Subscription]:
    """Let the listener hear of a run while the block runs. Without a channel it hears nothing."""
    loop = asyncio.get_running_loop()
    subscriptions = _subscriptions.get(loop)
    if subscriptions is None:
        subscriptions = _subscriptions[loop] = Subscriptions(_connect)
    with subscriptions.watching(workflow_id, listener) as subscription:
        yield subscription


def _connect(subscriptions: Subscriptions) -> asyncio.Task[None] | None:
    folder = live_folder()
    if folder is None:
        return None
    try:
        check_folder(folder)
    except FileNotFoundError:
        pass  # no worker has made it yet
    except UnusableFolderError as error:
        _log.warning("Live text comes by heartbeats only: %s", error)
        return None
    return asyncio.create_task(connect_to_all(folder, subscriptions, live_seal()))
