"""Processes that this one has started, and what has become of them: those of other tests are not looked at."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict


def below(word: str) -> list[int]:
    """The ids of the processes below this one that run, and whose command line has a word."""
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "args="],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    children: defaultdict[int, list[int]] = defaultdict(list)
    found = set()
    for line in listed.splitlines():
        pid, parent, state, *words = line.split()
        children[int(parent)].append(int(pid))
        if word in words and not state.startswith("Z"):
            found.add(int(pid))
    ours = [os.getpid()]
    for each in ours:
        ours += children[each]  # grows while it is walked
    return sorted(found.intersection(ours[1:]))


def is_running(pid: int) -> bool:
    """Not one that has ended and that nobody has asked after: in a container that may be so for ever."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True).stdout.strip()
    return bool(told) and not told.startswith("Z")
