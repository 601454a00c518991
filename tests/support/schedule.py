"""The order of tests, and which run in the same process, when several processes run them (pytest-xdist)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.durations import Table, read_table, usual, walls
from tests.support.floors import WAITING, is_below

MORE_THAN_CORES = 2
"""Processes in addition to one for each core. Live tests wait for about a third of their time, but each process needs some
seconds to collect all tests, and the more processes share a core, the closer tests come to their time limits.
"""

SHARED: Mapping[str, str] = {
    # docs/recovery.md is printed from what these files observe: in one process each row is run once.
    "tests/promise/test_recovery.py": "tests/promise/test_recovery_page.py",
    "tests/promise/test_structured_output.py": "tests/promise/test_recovery_page.py",
}
"""Files that run in the same process as another file."""

FIRST = (
    "tests/unit/test_memory_size.py",  # measures allocations: run before its process has a worker, whose threads allocate as well
    "tests/live/test_step_costs.py",  # counts calls: of a process in which no other test has run
)
"""One file before all others, and one that begins in another process."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules the tests of a file in one process, because they share fixtures; files in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """The file whose tests run in the same process as this one."""
    file = nodeid.partition("::")[0]
    return SHARED.get(file, file)


def in_order(nodeids: Sequence[str], table: Table | None = None) -> list[str]:
    """One file whose tests wait, then two whose tests compute, by turns, so that both cores stay busy; of both kinds the longest
    first, so that no process is still busy with one when the others have finished.

    `table`: what was measured; otherwise that of tests/durations.json. A file that is not in it counts as one of the usual length.
    """
    table = read_table() if table is None else table
    scopes: dict[str, list[str]] = {}
    for nodeid in sorted(nodeids, key=lambda nodeid: scope_of(nodeid) != nodeid.partition("::")[0]):
        scopes.setdefault(scope_of(nodeid), []).append(nodeid)
    known, otherwise = walls(table), usual(table)
    files = {scope: {nodeid.partition("::")[0] for nodeid in scopes[scope]} for scope in scopes}
    seconds = {scope: sum(known.get(file, otherwise) for file in files[scope]) for scope in scopes}
    rest = sorted((scope for scope in scopes if scope not in FIRST), key=lambda scope: (-seconds[scope], scope))
    waiting = [FIRST[1], *(scope for scope in rest if is_below(scope, WAITING))]
    computing = [scope for scope in rest if not is_below(scope, WAITING)]
    turns = zip_longest(waiting, computing[::2], computing[1::2])
    ordered = [FIRST[0], *(scope for turn in turns for scope in turn if scope)]
    return [nodeid for scope in ordered for nodeid in scopes.get(scope, ())]


def make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """For xdist, whose own reordering, by the number of tests in a file, would undo this one."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
