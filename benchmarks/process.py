"""The resource use of a process, read from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """CPU time in seconds; memory in bytes, resident and private (USS)."""

    cpu_seconds: float
    resident: int
    private: int


def cpu_of(pid: int) -> float:
    """CPU time in seconds, user and system, with the resolution of the kernel's tick (10 ms)."""
    # The name of the program is in brackets and may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def usage_of(pid: int) -> Usage:
    """Read CPU time and memory; the kernel sums the memory up, which takes milliseconds."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) * 1024
    return Usage(cpu_of(pid), sizes["Rss"], sizes["Private_Clean"] + sizes["Private_Dirty"])
