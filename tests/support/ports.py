"""Free ports of the loopback, safe while other processes look for ports too."""

from __future__ import annotations

from mulligan.devserver.dev_server import _free_port


def free_ports(count: int) -> list[int]:
    """Return different free ports. For a minute the system gives none of them to a process that asks for any free port."""
    ports: list[int] = []
    while len(ports) < count:
        port = _free_port()
        if port not in ports:
            ports.append(port)
    return ports
