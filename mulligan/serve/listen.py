"""Runs the application with uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

import uvicorn

from mulligan.errors import DeclarationError
from mulligan.serve.app import create_app

__all__ = ["listen"]

SECONDS_TO_STOP = 10
"""How long requests may take to end after Ctrl-C or SIGTERM. Streams are ended at once; their clients connect again."""
SECONDS_UNREAD = 60
"""After which a connection is dropped whose client does not take what was sent: its buffers would be kept for ever."""
BACKLOG = 2_048
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not listened at


def listen(
    host: str,
    port: int,
    *,
    allow_hosts: Iterable[str],
    allow_origins: Iterable[str],
    task_queue: str | None,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM. `say` is given the URL.

    Raises:
        DeclarationError: nothing can listen there, or a setting is invalid.
    """
    hosts = [*allow_hosts, *([] if host in _WILDCARDS else [f"[{host}]" if ":" in host else host])]
    application = create_app(hosts=hosts, origins=allow_origins, task_queue=task_queue)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise DeclarationError(f"nothing can listen at {host} port {port}: {error}.") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: connections that are accepted here have it too
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SECONDS_UNREAD * 1_000)
    bound = listener.getsockname()[1]
    say(f"Serving agents at http://{f'[{host}]' if ':' in host else host}:{bound}. Ctrl-C stops it.")
    # No access log: paths contain ids of runs, and queries tokens of events.
    config = uvicorn.Config(
        application,
        log_config=None,  # `set_up_logging` has been called: its lines are escaped and limited
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SECONDS_TO_STOP,
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
