"""The tests of a file leave the environment of their process as they found it.

Files share a process, in an order that differs from run to run: a variable that one of them leaves, such as the address of a
model server that has ended, fails another one in which nothing is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping

import pytest


class KeptEnvironment:
    """A plugin for each process that runs tests."""

    def __init__(self) -> None:
        self._expected: dict[str, str] | None = None

    def set_for_session(self, variables: Mapping[str, str]) -> None:
        """Set variables that all tests from now on may use."""
        os.environ.update(variables)
        if self._expected is not None:
            self._expected |= variables

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Before the first fixture of a file."""
        if self._expected is None:
            self._expected = _environment()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
        """After the last fixture of a file. What was left is taken back, so that it fails no other test."""
        yield
        if nextitem is not None and nextitem.path == item.path:
            return
        expected, self._expected = self._expected or {}, None
        left = sorted(name for name, _ in expected.items() ^ _environment().items())
        for name in left:
            if name in expected:
                os.environ[name] = expected[name]
            else:
                os.environ.pop(name, None)
        if left:
            pytest.fail(f"{item.path.name} leaves environment variables changed: {', '.join(dict.fromkeys(left))}")


def _environment() -> dict[str, str]:
    """Without what pytest sets itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
