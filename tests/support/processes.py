"""The processes that this one has started, without those of other tests."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from contextlib import suppress


def descendants_with(word: str) -> list[int]:
    """The ids of running descendant processes whose command line contains a word."""
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
        ours += children[each]  # the list grows during the iteration
    return sorted(found.intersection(ours[1:]))


def is_running(pid: int) -> bool:
    """Whether it runs, and is not a zombie: in a container nobody may collect those."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True).stdout.strip()
    return bool(told) and not told.startswith("Z")


def open_files() -> list[str]:
    """What the descriptors of this process lead to, without its connections: other tests' clients open and close those."""
    found = []
    for each in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing
            found.append(os.readlink(each.path))
    return sorted(each for each in found if not each.startswith(("socket:", "anon_inode:", "/proc/")))


def children_of(parent: int, word: str) -> list[int]:
    """The ids of running child processes whose command line contains a word."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "stat=", "-o", "args=", "--ppid", str(parent)],
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    rows = [line.split() for line in listed.splitlines()]
    return sorted(int(pid) for pid, state, *words in rows if word in words and not state.startswith("Z"))
