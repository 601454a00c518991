"""Temporal's dev server: find it, download it or build it, start it, stop it. Nothing in here prints."""

from mulligan.devserver.dev_server import DevServer, any_server, temporal_server
from mulligan.devserver.errors import DevServerError, NoDevServerError, PortInUseError, ServerStartError
from mulligan.devserver.find import find_temporal

__all__ = [
    "DevServer",
    "DevServerError",
    "NoDevServerError",
    "PortInUseError",
    "ServerStartError",
    "any_server",
    "find_temporal",
    "temporal_server",
]
