"""What can go wrong before there is a dev server. Each message is one sentence for the user's terminal."""

from __future__ import annotations


class DevServerError(Exception):
    """There is no dev server, and the message says why."""


class NoDevServerError(DevServerError):
    """No `temporal` program was found, downloaded or built. The message says what was tried, and what to install."""


class PortInUseError(DevServerError):
    """Something else listens on the port that was asked for."""

    def __init__(self, port: int, why: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 cannot be used ({why}): stop what holds it, or choose another port")
        self.port = port


class ServerStartError(DevServerError):
    """The dev server ended, or did not answer, while it was starting. The message ends with its own last words."""


class FetchError(Exception):
    """One way to come by the program failed; the next is tried. Never leaves this room."""
