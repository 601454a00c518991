"""The order of tests, and which run in the same process, when several processes run them (pytest-xdist)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import pytest
from xdist.scheduler import LoadScopeScheduling

MORE_THAN_CORES = 2
"""Processes in addition to one for each core. Live tests wait for about a third of their time, but each process needs some
seconds to collect all tests, and the more processes share a core, the closer tests come to their time limits.
"""

SHARED: Mapping[str, str] = {
    # docs/recovery.md is printed from what these files observe: in one process each row is run once.
    "tests/live/test_recovery.py": "tests/live/test_recovery_page.py",
    "tests/live/test_structured_output.py": "tests/live/test_recovery_page.py",
}
"""Files that run in the same process as another file."""

FIRST = (
    "tests/unit/test_memory_size.py",  # measures allocations: run before its process has a worker, whose threads allocate as well
    "tests/live/test_step_costs.py",  # counts calls: of a process in which no other test has run
    "tests/live/test_sub_agents.py",
    "tests/live/test_events.py",
    "tests/live/test_recovery_page.py",
    "tests/live/test_compaction.py",
    "tests/live/test_continue_as_new.py",
    "tests/live/test_mcp.py",
    "tests/live/test_resume.py",
    "tests/live/test_continue_while_waiting.py",
    "tests/acceptance/test_commands.py",
    "tests/live/test_worker_group.py",
    "tests/live/test_people.py",
    "tests/live/test_sizes.py",
    "tests/live/test_history.py",
    "tests/live/test_fallback.py",
    "tests/live/test_lost_workers.py",
    "tests/live/test_testing_kit.py",
    "tests/live/test_serve.py",
)
"""One file before all others, one that begins in another process, then the files that take longest, so that no process is still busy with one when the others have
finished."""
WAITING = ("tests/system", "tests/live", "tests/acceptance")
"""The folders of tests that wait for servers and time limits."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules the tests of a file in one process, because they share fixtures; files in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """The file whose tests run in the same process as this one."""
    file = nodeid.partition("::")[0]
    return SHARED.get(file, file)


def in_order(nodeids: Sequence[str]) -> list[str]:
    """One file whose tests wait, the longest first, then two whose tests compute, by turns: both cores stay busy."""
    scopes: dict[str, list[str]] = {}
    for nodeid in sorted(nodeids, key=lambda nodeid: scope_of(nodeid) != nodeid.partition("::")[0]):
        scopes.setdefault(scope_of(nodeid), []).append(nodeid)
    rest = [scope for scope in sorted(scopes) if scope not in FIRST]
    waiting = [*FIRST[1:], *(scope for scope in rest if scope.startswith(WAITING))]
    computing = [scope for scope in rest if not scope.startswith(WAITING)]
    turns = zip_longest(waiting, computing[::2], computing[1::2])
    ordered = [FIRST[0], *(scope for turn in turns for scope in turn if scope)]
    return [nodeid for scope in ordered for nodeid in scopes.get(scope, ())]


def make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """For xdist, whose own reordering, by the number of tests in a file, would undo this one."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
