"""Lists, measures and ends the processes below a process, through Linux's `/proc`.

Without `/proc` (macOS) no process is listed. Children of a process are found as long as it is alive; those that lose it
become children of their nearest ancestor that is a subreaper.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_MEMORY_FIELDS = (
    ("smaps_rollup", {"Pss_Anon", "Pss_Shmem", "SwapPss"}),
    # Every process may read this one. Pages that processes share count for each of them.
    ("status", {"RssAnon", "RssShmem", "VmSwap"}),
)


def children_of(process: int) -> set[int]:
    """The ids of a process's children, also of those that have ended and that it has not waited for."""
    children: set[int] = set()
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{process}/task"):
            children.update(map(int, Path(f"/proc/{process}/task/{thread}/children").read_bytes().split()))
    return children


def processes_below(process: int) -> list[int]:
    """The ids of a process's descendants."""
    below, pending = [], children_of(process)
    while pending:
        below.append(child := pending.pop())
        pending |= children_of(child)
    return below


def memory_of(process: int) -> int:
    """Bytes of a process in anonymous and shared memory and in swap; 0 if it has ended.

    What processes share is divided among them, unless the process is hidden from this one (`hide`).
    """
    for file, names in _MEMORY_FIELDS:
        with suppress(OSError):
            lines = [line.split() for line in Path(f"/proc/{process}/{file}").read_text().splitlines()]
            sizes = [int(line[1]) for line in lines if line[0].rstrip(":") in names]
            if len(sizes) == len(names):  # older kernels have not all of them
                return sum(sizes) * 1024
    return 0


def end_tree(roots: Iterable[int]) -> None:
    """Kill processes and all below them.

    Each is stopped before its children are listed. So it can start none meanwhile, and does not wait for one of them, after
    which another process could get that one's id.
    """
    pending, stopped = set(roots), []
    while pending:
        process = pending.pop()
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGSTOP)
            stopped.append(process)
            pending |= children_of(process)
    for process in stopped:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends, in place of the system's first process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Its own children are not concerned."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hide() -> None:
    """Close this process's memory, environment and descriptors to other processes of its user.

    The kernel keeps that for forked children, and ends it when a program is executed. It does not concern root.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
