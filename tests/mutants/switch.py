"""Which fault is on, in every process that runs from a copy of the project (`private_copy.py`), and which faults a test reaches.

This file is copied beside the packages of the copy's environment and imported by each Python there, before anything else; so it
imports nothing of the project. What all processes share is a file in memory: the number of the fault that is on, the number of
the test that runs, and for each test a byte for each fault.
"""

from __future__ import annotations

import builtins
import ctypes
import os
from collections.abc import Callable

FAULTS, ROWS = 512, 16_384
HEADER = 8
READ_AND_WRITE, SHARED = 3, 1
C = ctypes.CDLL(None, use_errno=True)
NONE = 0xFFFF_FFFF
FILE = "mulligan_mutants.state"


class Switch:
    """The shared state."""

    def __init__(self, path: str) -> None:
        size = HEADER + FAULTS * ROWS
        opened = os.open(path, os.O_RDWR)
        # `mmap.mmap` would keep a file descriptor, and some tests write to all that they find.
        C.mmap.restype = ctypes.c_void_p
        at = C.mmap(None, ctypes.c_size_t(size), READ_AND_WRITE, SHARED, opened, ctypes.c_long(0))
        os.close(opened)
        shared = memoryview((ctypes.c_ubyte * size).from_address(at)).cast("B")
        self._words = shared[:HEADER].cast("I")
        self._reached = shared[HEADER:]

    def is_on(self, fault: int) -> bool:
        """Whether a fault is on. Called where it is, which so counts as reached."""
        self._reached[self._words[1] * FAULTS + fault] = 1
        return self._words[0] == fault

    def turn_on(self, fault: int | None) -> None:
        """Turn one fault on, or none, in all processes."""
        self._words[0] = NONE if fault is None else fault

    @property
    def row(self) -> int:
        """Where it is written what is reached: one row for each test; row 0 is for imports."""
        return self._words[1]

    @row.setter
    def row(self, row: int) -> None:
        self._words[1] = row

    def reached(self, row: int) -> list[int]:
        """The faults that were reached while this was the row."""
        return [fault for fault in range(FAULTS) if self._reached[row * FAULTS + fault]]


def create(path: str) -> None:
    """Write the file that processes share, with no fault on."""
    with open(path, "wb") as file:
        file.write(NONE.to_bytes(4, "little") + bytes(4))
        file.truncate(HEADER + FAULTS * ROWS)


def install() -> Switch | None:
    """Give the name that faults ask for to all files of this process."""
    path = os.path.join(os.path.dirname(__file__), FILE)
    found = Switch(path) if os.path.exists(path) else None
    is_on: Callable[[int], bool] = found.is_on if found is not None else lambda _: False
    builtins.__is_mutant__ = is_on  # type: ignore[attr-defined]
    return found


SWITCH = install() if __name__ == "mulligan_mutants_switch" else None
