"""A progress line instead of a dot for each test, when several processes run the tests."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import pytest

SECONDS_BETWEEN_LINES = 15
SECONDS_BETWEEN_REWRITES = 0.2
SECONDS_UNTIL_ESTIMATE = 5
USUAL_SECONDS = {"unit": 0.03, "replay": 0.1, "system": 3.0}
"""The expected seconds of a test by its folder; elsewhere it is a second."""
TESTS_OF_USUAL = 200
"""The mean duration in a folder counts this many tests of the usual duration as well as those that have run. The files that take
longest are run first, so the mean of the first tests alone is far too long."""


class Progress:
    """A plugin for pytest's controlling process. On a terminal one line is rewritten; otherwise a line is printed regularly.

    Failures are named at once. At the end pytest prints them in full, and its last line.
    """

    def __init__(self, terminal: pytest.TerminalReporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._rewrites = terminal.isatty
        self._clock = clock
        self._began = self._shown = clock()
        self._left: Counter[str] = Counter()  # tests, by folder
        self._all = 0
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._done = 0
        self._failed = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def pytest_sessionstart(self) -> None:
        """Update the line while no test ends: the first ones may take minutes."""
        threading.Thread(target=self._tick, name="progress", daemon=True).start()

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Each process collects the same tests."""
        if not self._all:
            self._all = len(ids)
            self._left = Counter(map(_folder, ids))
            self._began = self._shown = self._clock()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the report as usual, but print no letter."""
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", "FAILED"
        if hasattr(report, "wasxfail"):
            return ("xfailed" if report.skipped else "xpassed"), "", ""
        if report.skipped:
            return "skipped", "", "SKIPPED"
        if isinstance(report, pytest.SubtestReport):
            return "", "", ""  # a part of a test that is counted
        return ("passed" if report.when == "call" else ""), "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One of the three phases of a test has ended, or a part of it."""
        if isinstance(report, pytest.SubtestReport) and not report.failed:
            return
        seconds = self._seconds[_folder(report.nodeid)]
        if report.when == "setup":
            seconds.append(0)
        if seconds:
            seconds[-1] += report.duration
        if report.failed:
            self._failed += 1
            self._line(f"FAILED {report.nodeid}" + ("" if report.when == "call" else f" ({report.when})"))
        if report.when == "teardown":
            self._done += 1
            self._left[_folder(report.nodeid)] -= 1
            self._show()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End the progress line, so that pytest prints on a new line."""
        self._ended.set()
        self._line(self.text())

    def text(self) -> str:
        """The line."""
        left = sum(self._left.values())
        parts = [f"{self._all - left:,} of {self._all:,} tests"]
        if self._failed:
            parts.append(f"{self._failed} failed")
        passed = self._clock() - self._began
        parts.append(_in_words(passed))
        if left and passed >= SECONDS_UNTIL_ESTIMATE:
            parts.append(f"about {_in_words(self._estimate(passed))} left")
        return ", ".join(parts)

    def _estimate(self, passed: float) -> float:
        # The estimate is by folder: live tests take many times as long as the others.
        work = sum(count * self._usual(folder) for folder, count in self._left.items())
        done = sum(sum(seconds) for seconds in self._seconds.values())
        return work / max(done / passed, 1)

    def _usual(self, folder: str) -> float:
        seconds = self._seconds[folder]
        return (sum(seconds) + TESTS_OF_USUAL * USUAL_SECONDS.get(folder, 1)) / (len(seconds) + TESTS_OF_USUAL)

    def _tick(self) -> None:
        while not self._ended.wait(1):
            if self._all:
                self._show()

    def _show(self) -> None:
        with self._lock:
            now = self._clock()
            if now - self._shown < (SECONDS_BETWEEN_REWRITES if self._rewrites else SECONDS_BETWEEN_LINES):
                return
            self._shown = now
            if self._rewrites:
                self._terminal.rewrite(self.text(), erase=True)
            else:
                self._terminal.write_line(self.text())
            # Output to a file or a pipe is buffered: in CI the line would be printed minutes later.
            self._terminal.flush()

    def _line(self, text: str) -> None:
        with self._lock:
            if self._rewrites:
                self._terminal.rewrite(text, erase=True)
                self._terminal.line("")
            else:
                self._terminal.write_line(text)
            self._terminal.flush()


def _folder(nodeid: str) -> str:
    """`live` of `tests/promise/test_people.py::test_name`."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else ""


def _in_words(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
