"""How often one process sends, or looks for, what models are writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from temporalio.client import Client

FASTEST = 0.08
"""Seconds between two requests for one run, where few runs are live."""
SLOWEST = 1.0
"""Seconds between two heartbeats with what a model writes, where many runs are live."""
MOST_PER_SECOND = 125
"""Requests of one process in a second, while each run has more of them than it must have."""
_CLOUD_SUFFIXES = (".tmprl.cloud", ".api.temporal.io")
"""How the names of the hosts of Temporal Cloud end."""


class LivePace:
    """The seconds between two requests for a run: the more runs are live in this process, the longer, up to `slowest`.

    Args:
        slowest: With `MOST_PER_SECOND * slowest` live runs and more, as many seconds as this.
        fastest: With few live runs.
    """

    def __init__(self, slowest: float, fastest: float | None = None) -> None:
        self.slowest, self._fastest = slowest, slowest if fastest is None else min(fastest, slowest)
        self._live = 0

    @property
    def seconds(self) -> float:
        """The seconds now."""
        return self.up_to(self.slowest)

    def up_to(self, slowest: float) -> float:
        """The seconds now, where they may be longer: up to `slowest`, which they are always if the pace is fixed."""
        if self._fastest == self.slowest:
            return slowest
        return min(slowest, max(self._fastest, self._live / MOST_PER_SECOND))

    @contextmanager
    def counted(self, client: Client) -> Iterator[None]:
        """Count a run as live while the block runs. `client`: of its server. On Temporal Cloud the pace is the slowest."""
        if is_cloud(client.service_client.config.target_host):
            self._fastest = self.slowest
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1


def is_cloud(server: str) -> bool:
    """Whether a Temporal server is Temporal Cloud, where each heartbeat is billed. `server`: its address."""
    return (urlsplit(f"//{server.rpartition('//')[2]}").hostname or "").endswith(_CLOUD_SUFFIXES)
