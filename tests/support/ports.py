"""Ports of the loopback for programs that must be told one, safe beside tests that look for ports at the same time."""

from __future__ import annotations

from mulligan.devserver.dev_server import _free_port


def free_ports(count: int) -> list[int]:
    """As many, all different, that nobody is given for a minute who does not ask for one of them by its number."""
    ports: list[int] = []
    while len(ports) < count:
        port = _free_port()
        if port not in ports:
            ports.append(port)
    return ports
