"""The tests of a file leave the SDK's loggers of their process as they found them.

Workers and commands set filters and flags for their whole process, as they should; the tests of other files share it, in an
order that differs from run to run.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import pytest
from temporalio import activity, workflow

LOGGERS = "temporalio"


class KeptLogging:
    """A plugin for each process that runs tests."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] | None = None
        self._flags = (True, True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Before the first fixture of a file."""
        if self._found is None:
            self._found = {name: [*each.filters] for name, each in _loggers().items()}
            self._flags = activity.logger.activity_info_on_message, workflow.logger.workflow_info_on_message

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
        """After the last fixture of a file."""
        yield
        if nextitem is not None and nextitem.path == item.path:
            return
        found, self._found = self._found or {}, None
        for name, each in _loggers().items():
            each.filters[:] = found.get(name, [])
        activity.logger.activity_info_on_message, workflow.logger.workflow_info_on_message = self._flags


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict
    return {name: each for name, each in known.items() if name.startswith(LOGGERS) and isinstance(each, logging.Logger)}
