"""Temporal's dev server: find or fetch the program, start and stop it. Nothing here prints."""

from mulligan.devserver.dev_server import (
    DevServer,
    PortInUseError,
    ServerEndedError,
    ServerStartError,
    any_server,
    temporal_server,
)
from mulligan.devserver.find import DevServerError, NoDevServerError, find_temporal

__all__ = [
    "DevServer",
    "DevServerError",
    "NoDevServerError",
    "PortInUseError",
    "ServerEndedError",
    "ServerStartError",
    "any_server",
    "find_temporal",
    "temporal_server",
]
