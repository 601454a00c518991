"""The tests that failed, in a file: CI runs a few of them once more, by themselves, to tell a slow machine from a fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "FAILED_TESTS_FILE"
"""The environment variable with the path of that file. Each failure, and each error of a fixture, adds a line: the test's id."""


class FailedTests:
    """A plugin for the process that controls the others: it hears of all tests."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure at once: a run that is ended has none at its end."""
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")


def add_failed_tests(config: pytest.Config) -> None:
    """Register the plugin where such a file is named."""
    if (path := os.environ.get(VARIABLE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(Path(path)))
