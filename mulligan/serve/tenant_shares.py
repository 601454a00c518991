"""Bounds how much of something the requests of this process use at the same time: all of them, and those of one tenant."""

from __future__ import annotations

from collections import Counter
from typing import Literal


class TenantShares:
    """Counts what is taken. Nobody can take everything: one tenant has half of it at most."""

    def __init__(self, most: int) -> None:
        self.most, self.most_of_tenant = most, (most + 1) // 2
        self._total = 0
        self._taken: Counter[str | None] = Counter()

    def take(self, tenant: str | None, amount: int = 1) -> Literal["all", "tenant"] | None:
        """Take an amount, unless a limit would be exceeded. `tenant`: None is bounded by the limit of all only.

        Returns:
            The limit that would be exceeded; None: the amount is taken.
        """
        if self._total + amount > self.most:
            return "all"
        if tenant is not None and self._taken[tenant] + amount > self.most_of_tenant:
            return "tenant"
        self._total += amount
        self._taken[tenant] += amount
        return None

    def give_back(self, tenant: str | None, amount: int = 1) -> None:
        """Give an amount back that was taken."""
        self._total -= amount
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]
