"""The turns of a chain of workflow runs, by what history tells of them."""

from __future__ import annotations


class Turns:
    """The turns of the chain by their trace: `finish_run` does not say in history whose it is."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.outputs: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._looks = 0

    def see(self, trace: str) -> None:
        """Something of this turn came next."""
        self._looks += 1
        self._seen[trace] = self._looks

    def finish(self) -> str | None:
        """The turn that ends now: the open one that was seen last."""
        trace = max(self._seen, key=lambda seen: self._seen[seen], default=None)
        if trace is not None:
            del self._seen[trace]
        return trace
