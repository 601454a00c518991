"""The order of tests, and which run in the same process, when several processes run them (pytest-xdist)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling

MORE_THAN_CORES = 1
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
    "tests/live/test_events.py",
    "tests/live/test_sub_agents.py",
    "tests/live/test_compaction.py",
    "tests/live/test_continue_as_new.py",
    "tests/live/test_recovery_page.py",
    "tests/live/test_lost_workers.py",
)
"""Then the files that take longest, so that no process is still busy with one when the others have finished."""
FOLDERS = ("tests/system", "tests/live", "tests/acceptance")
"""Then tests that wait a lot; the many short tests are last."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules the tests of a file in one process, because they share fixtures; files in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED.get(file, file)


def rank(nodeid: str) -> tuple[int, ...]:
    """The sort key of a test: long ones, then those that wait, then the rest."""
    file = nodeid.partition("::")[0]
    scope = SHARED.get(file, file)
    first = FIRST.index(scope) if scope in FIRST else len(FIRST)
    folder = next((n for n, folder in enumerate(FOLDERS) if file.startswith(folder)), len(FOLDERS))
    return first, folder, scope != file


def make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """For xdist, whose own reordering, by the number of tests in a file, would undo this one."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
