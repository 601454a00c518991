"""The moment after which CI begins no further test: a run that is not over when its machine is taken away says nothing at all.

On a usual machine it is never reached. What is left out is counted as skipped, and said in one line at the end.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "TESTS_END_AT"
"""The environment variable with that moment, in seconds since 1970. Without it all tests run."""
NOT_RUN = "not run: the time that CI has is over"


class TimeBudget:
    """A plugin for each process that runs tests, and for the one that controls them."""

    def __init__(self, end: float) -> None:
        self._end = end

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Leave a test out, before anything is made for it."""
        if time.time() > self._end:
            pytest.skip(NOT_RUN)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many were left out."""
        left_out = [each for each in terminalreporter.stats.get("skipped", []) if NOT_RUN in str(each.longrepr)]
        if left_out:
            files = {each.nodeid.partition("::")[0] for each in left_out}
            terminalreporter.line(
                f"NOT RUN: {len(left_out)} tests of {len(files)} files, as the time that CI has is over"
            )


def add_time_budget(config: pytest.Config) -> None:
    """Register the plugin where there is such a moment."""
    if end := os.environ.get(VARIABLE):
        config.pluginmanager.register(TimeBudget(float(end)))
