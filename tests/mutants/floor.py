"""A plugin of pytest, for a process of a private copy (`private_copy.py`): what each test reaches, or which test a fault fails.

The process collects the tests once, and forks for each fault before it has run any of them: so there are no threads, loops or
servers that a fork would break, and each fault meets tests that nothing has run before.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from mulligan_mutants_switch import ROWS, SWITCH  # type: ignore[import-not-found]

import mulligan

PR_SET_CHILD_SUBREAPER = 36
HANGS_AFTER, TIMES_LONGER = 30.0, 12.0
"""Seconds that a test may take with a fault, and as many times its usual ones."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file that says what to do."""
    parser.addoption("--mutants-job", help="JSON; see tests/mutants/__main__.py")


def pytest_configure(config: pytest.Config) -> None:
    """Do that in place of running the tests once."""
    job = json.loads(Path(config.getoption("--mutants-job")).read_text())
    config.pluginmanager.register(Reaching(job) if job["task"] == "map" else Trying(job))


class Reaching:
    """Runs each test once, with no fault, and writes down what it reaches."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._out = Path(job["out"])
        self._of_fixture: dict[int, int] = {}
        self._failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture of several tests reaches is reached by each of them."""
        before = SWITCH.row
        if fixturedef.scope != "function":
            SWITCH.row = self._of_fixture.setdefault(id(fixturedef), ROWS - 1 - len(self._of_fixture))
        try:
            return (yield)
        finally:
            SWITCH.row = before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails with no fault cannot be asked about one."""
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """One after the other, in the order of collection."""
        found, items = [], session.items
        for index, item in enumerate(items):
            self._failed = False
            SWITCH.row = index + 1
            begun = time.monotonic()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=items[index + 1] if index + 1 < len(items) else None)
            found.append((item, self._failed, round(time.monotonic() - begun, 3)))
        SWITCH.row = 0
        rows = [
            {"test": item.nodeid, "failed": failed, "seconds": seconds, "reached": self._reached(item, index + 1)}
            for index, (item, failed, seconds) in enumerate(found)
        ]
        self._out.write_text(json.dumps(rows))
        return True

    def _reached(self, item: Any, row: int) -> list[int]:
        reached = {*SWITCH.reached(row)}
        for definitions in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009
            for each in definitions:
                if (of_fixture := self._of_fixture.get(id(each))) is not None:
                    reached |= {*SWITCH.reached(of_fixture)}
        return sorted(reached)


class Trying:
    """Runs chosen tests with each fault, up to the first that fails."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job, self._out = job, Path(job["out"])
        self._items: dict[str, pytest.Item] = {}
        self._reliable: set[str] = set()
        self._unreliable: set[str] = set()
        self._collection_failed = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A fault may be noticed as early as this."""
        if report.failed:
            self._collection_failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """One fault after the other."""
        CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if self._collection_failed:
            [task] = self._job["faults"]
            self._write(task["fault"], killed_by=self._collection_failed, how="import", ran=0, skipped=0)
            return True
        self._items = {item.nodeid: item for item in session.items}
        _import_all()
        for task in self._job["faults"]:
            self._try(task)
        return True

    def _try(self, task: Mapping[str, Any]) -> None:
        fault, tests = task["fault"], [each for each in task["tests"] if each in self._items]
        tests = [each for each in tests if each not in self._unreliable]
        ends, ran = time.monotonic() + task["seconds"], 0
        while tests:
            outcome, index = self._fork(fault, tests, ends)
            ran += index
            if outcome in ("passed", "out of time"):
                break
            ran += 1
            killer, tests = tests[index], tests[index + 1 :]
            if self._is_real(fault, killer, outcome):
                self._write(fault, killed_by=killer, how=outcome, ran=ran, skipped=0)
                return
        self._write(fault, killed_by=None, how="", ran=ran, skipped=task["left"] + max(0, len(task["tests"]) - ran))

    def _is_real(self, fault: int, test: str, outcome: str) -> bool:
        """Whether a test that has failed with the fault passes alone without it, or is known to.

        Where the fault is there since the import, it must fail again.
        """
        if test in self._reliable:
            return True
        alone = time.monotonic() + 300
        if self._job["at_import"]:
            return outcome == "hangs" or self._fork(fault, [test], alone)[0] != "passed"
        is_real = self._fork(None, [test], alone)[0] == "passed"
        (self._reliable if is_real else self._unreliable).add(test)
        return is_real

    def _write(self, fault: int, **found: Any) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps({"fault": fault, **found}) + "\n")

    def _fork(self, fault: int | None, tests: Sequence[str], ends: float) -> tuple[str, int]:
        """Run tests in a process of their own: passed, failed, hangs or out of time; and the index of the last one."""
        readable, writable = os.pipe()
        SWITCH.turn_on(fault)
        child = os.fork()
        if not child:
            os.close(readable)
            self._run(tests, writable)
        os.close(writable)
        try:
            return self._follow(readable, tests, ends)
        finally:
            os.close(readable)
            _end(child)
            if not self._job["at_import"]:
                SWITCH.turn_on(None)
            for each in Path(os.environ["TMPDIR"]).iterdir():
                shutil.rmtree(each, ignore_errors=True)

    def _follow(self, readable: int, tests: Sequence[str], ends: float) -> tuple[str, int]:
        index = 0
        while True:
            usual = self._job["usual"].get(tests[index], 1.0)
            hangs = time.monotonic() + HANGS_AFTER + TIMES_LONGER * usual
            while True:
                left = min(hangs, ends) - time.monotonic()
                if left <= 0:
                    return ("hangs" if hangs < ends else "out of time"), index
                if select.select([readable], [], [], left)[0]:
                    break
            news = os.read(readable, 1)
            if news != b"p":  # it failed, or its process has ended
                return "failed", index
            if index + 1 == len(tests):
                return "passed", index + 1
            index += 1

    def _run(self, tests: Sequence[str], writable: int) -> None:
        """In the child: it writes a letter for each test, and never returns."""
        failed = False

        class Reports:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                nonlocal failed
                failed |= report.failed

        items = [self._items[each] for each in tests]
        try:
            items[0].config.pluginmanager.register(Reports())
            for index, item in enumerate(items):
                following = items[index + 1] if index + 1 < len(items) else None
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                os.write(writable, b"f" if failed else b"p")
                if failed:
                    break
        finally:
            os._exit(0)


def _import_all() -> None:
    """Import what the children would import again and again."""
    for each in pkgutil.walk_packages(mulligan.__path__, "mulligan."):
        if not each.name.endswith("__main__") and ".new_project" not in each.name:
            with suppress(Exception):
                importlib.import_module(each.name)
    for name in ("openai.resources.chat.completions", "openai.resources.responses"):
        importlib.import_module(name)


def _end(child: int) -> None:
    """End a process and all that it has started, which then belong to this one."""
    left = {child}
    while left:
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(each, 0)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        left = {int(each) for each in children.split()}
