"""Which tests go to one process, and in which order: for tests that are shared by several (pytest-xdist)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling

MORE_THAN_CORES = 1
"""Processes beside one for each core. Live tests wait about a third of their time; each process collects all tests first,
which takes some seconds of a core, and where more share a core, what has a time limit comes closer to it.
"""

SHARED: Mapping[str, str] = {
    # docs/recovery.md is printed from what these files see: in one process each row is run once.
    "tests/live/test_recovery.py": "tests/live/test_matrix_page.py",
    "tests/live/test_structured_output.py": "tests/live/test_matrix_page.py",
}
"""Files that are given to a process together with another."""

FIRST = (
    "tests/unit/test_footprint.py",  # weighs what is allocated: before its process has a worker, whose threads allocate as well
    "tests/live/test_events.py",
    "tests/live/test_sub_agents.py",
    "tests/live/test_compaction.py",
    "tests/live/test_continue_as_new.py",
    "tests/live/test_matrix_page.py",
    "tests/live/test_lost_workers.py",
)
"""Then what takes longest, or one process would be busy with it when the others have nothing left."""
FOLDERS = ("tests/system", "tests/live", "tests/acceptance")
"""Then what waits a lot; the many short tests last."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests in one process, as they share fixtures; files in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED.get(file, file)


def rank(nodeid: str) -> tuple[int, ...]:
    """Sort tests by this: what takes long, then what waits, then the rest."""
    file = nodeid.partition("::")[0]
    scope = SHARED.get(file, file)
    first = FIRST.index(scope) if scope in FIRST else len(FIRST)
    folder = next((n for n, folder in enumerate(FOLDERS) if file.startswith(folder)), len(FOLDERS))
    return first, folder, scope != file


def make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """For xdist. Its own reordering, by the number of tests in a file, would undo ours."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
