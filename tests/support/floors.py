"""The floors of the tests: which folders each target of the Makefile runs. A file of tests belongs to the floor of its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FLOORS: Mapping[str, Sequence[str]] = {
    "test": ("tests/unit", "tests/house", "tests/replay", "tests/promise"),
    "test-live": ("tests/live", "tests/acceptance"),
    "test-system": ("tests/system",),
}
"""The targets, the fast one first, and their folders."""
WAITING = ("tests/system", "tests/live", "tests/acceptance", "tests/promise")
"""The folders of tests that wait for servers and time limits."""


def floor_of(file: str) -> str | None:
    """The target that runs a file of tests; None if no target does."""
    return next((name for name, folders in FLOORS.items() if is_below(file, folders)), None)


def is_below(file: str, folders: Sequence[str]) -> bool:
    """Whether a file is in one of the folders, at whatever depth."""
    return any(file.startswith(f"{folder}/") for folder in folders)
