"""An event loop whose time jumps to the next timer: hours pass at once, and deterministically."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For code that waits only by `asyncio.sleep`, and reads the loop's time."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Seconds since the creation of the loop."""
        return self._passed

    def jump(self, seconds: float) -> None:
        """Advance the time by what a selector would wait."""
        self._passed += seconds


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        """Advance the time by the timeout instead of waiting."""
        self._loop.jump(max(0.0, timeout or 0.0))
        return super().select(0)
