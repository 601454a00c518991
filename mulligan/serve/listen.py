"""Runs the application with uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_network

import uvicorn

from mulligan.client.settings import settings
from mulligan.errors import DeclarationError
from mulligan.serve.connections import Connections, raise_descriptor_limit
from mulligan.serve.create_app import create_app
from mulligan.worker.logs import set_up_logging

SECONDS_TO_STOP = 10
"""How long requests may take to end after Ctrl-C or SIGTERM. Streams are ended at once; their clients connect again."""
SECONDS_UNREAD = 60
"""After which a connection is dropped whose client does not take what was sent: its buffers would be kept for ever."""
BACKLOG = 2_048
"""Connections that wait until they are accepted."""
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not listened at


def listen(  # noqa: PLR0913 - an option is a parameter
    host: str,
    port: int,
    *,
    allow_hosts: Iterable[str],
    allow_origins: Iterable[str],
    task_queue: str | None,
    strict: bool = False,
    stop_on_disconnect: bool = False,
    proxies: Sequence[str] = (),
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM. `say` is given the URL. `proxies`: the addresses, or networks, whose headers
    `X-Forwarded-For` and `X-Forwarded-Proto` are believed.

    Raises:
        DeclarationError: nothing can listen there, or a setting is invalid.
    """
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            raise DeclarationError(f"--trust-proxy is {proxy[:80]!r}; give an address or a network: {error}.") from None
    hosts = [*allow_hosts, *([] if host in _WILDCARDS else [f"[{host}]" if ":" in host else host])]
    application = create_app(
        hosts=hosts,
        origins=allow_origins,
        task_queue=task_queue,
        strict=strict,
        stop_on_disconnect=stop_on_disconnect,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise DeclarationError(f"nothing can listen at {host} port {port}: {error}.") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: connections that are accepted here have it too
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SECONDS_UNREAD * 1_000)
    set_up_logging(settings().log_format)  # its lines are escaped and limited
    bound = listener.getsockname()[1]
    say(f"Serving agents at http://{f'[{host}]' if ':' in host else host}:{bound}. Ctrl-C stops it.")
    descriptors = raise_descriptor_limit()
    config = Connections(descriptors * 3 // 4).config(
        application,
        log_config=None,
        # uvicorn believes every client on this machine by default, and would read the addresses from FORWARDED_ALLOW_IPS.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_graceful_shutdown=SECONDS_TO_STOP,
        # So many are accepted at once, before the first of them is counted.
        backlog=min(BACKLOG, descriptors // 8),
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
