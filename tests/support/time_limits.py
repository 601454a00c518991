"""The time limit of a test holds for what tears it down as well.

pytest-timeout stops the timer of a test that fails, and does not start it again: a fixture that is left after a failure could
wait for hours, and no test after it in the same process would run.
"""

from __future__ import annotations

from typing import Any

import pytest

SETTINGS: pytest.StashKey[Any] = pytest.StashKey()


class TimeLimits:
    """A plugin beside pytest-timeout, for each process that runs tests."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """Keep what the timer was started with."""
        item.stash[SETTINGS] = settings

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """The end of a test has the whole time."""
        if SETTINGS in item.stash:
            item.ihook.pytest_timeout_cancel_timer(item=item)
            item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[SETTINGS])
