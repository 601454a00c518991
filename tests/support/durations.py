"""What the tests cost: tests/durations.json, by which they are ordered. `make durations` measures them again.

As a plugin (`-p tests.support.durations`) it writes the file: CPU seconds (of the process and of those that it has waited for)
and seconds by the clock, of each file, and of each test that takes half a second. Only what was measured is replaced; a file of
which some tests were left out keeps what it had.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.floors import FLOORS, floor_of

FILE = Path(__file__).parents[1] / "durations.json"
SHOWN_FROM = 0.5
Measured = Mapping[str, Sequence[float]]
"""[CPU, wall] of each test by its id."""
Table = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By target and file: `cpu`, `wall`, and `tests`, which has both of each long test."""


def read_table(file: Path = FILE) -> Table:
    """What was measured last; nothing if there is no such file."""
    table: Table = json.loads(file.read_text()) if file.exists() else {}
    return table


def walls(table: Table) -> dict[str, float]:
    """The seconds of each file."""
    return {name: each["wall"] for files in table.values() for name, each in files.items()}


def usual(table: Table) -> float:
    """The seconds that a file is taken to need of which nothing is known."""
    return median(walls(table).values() or [0.0])


def merge(table: Table, measured: Measured, existing: Collection[str], partial: Collection[str] = ()) -> Table:
    """A table with what was measured in the place of what it had, without files that are gone."""
    files: dict[str, dict[str, Sequence[float]]] = {}
    for nodeid, each in measured.items():
        file, _, test = nodeid.partition("::")
        files.setdefault(file, {})[test] = each
    kept = {name: each for known in table.values() for name, each in known.items() if name in existing}
    kept |= {name: _row(tests) for name, tests in files.items() if name not in partial or name not in kept}
    return {
        target: {name: kept[name] for name in sorted(kept) if floor_of(name) == target}
        for target in FLOORS
        if any(floor_of(name) == target for name in kept)
    }


def _row(tests: Measured) -> dict[str, Any]:
    long = {test: [round(each, 1) for each in tests[test]] for test in sorted(tests) if max(tests[test]) >= SHOWN_FROM}
    cpu, wall = (round(sum(each[index] for each in tests.values()), 1) for index in (0, 1))
    return {"cpu": cpu, "wall": wall} | ({"tests": long} if long else {})


def written(table: Table) -> str:
    """The file's text: a line for each file of tests, so that a diff shows which became dearer."""
    floors = []
    for target, files in table.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in files.items()]
        floors.append(f" {json.dumps(target)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(floors) + "\n}\n"


class Durations:
    """Measures the tests of a process; the controlling process collects and writes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._measured: dict[str, list[float]] = {}
        self._partial: set[str] = set()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note which files are not run as a whole."""
        self._partial |= {item.nodeid.partition("::")[0] for item in items}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Add what a test takes, with what is made for it and torn down after it."""
        cpu, wall = cpu_seconds(), time.monotonic()
        result = yield
        known = self._measured.setdefault(item.nodeid, [0.0, 0.0])
        known[0] += cpu_seconds() - cpu
        known[1] += time.monotonic() - wall
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what another process has measured."""
        given: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        self._measured |= given.get("durations", {})
        self._partial |= {*given.get("partial", ())}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Hand it on, or write it."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["durations"] = self._measured
            self._config.workeroutput["partial"] = sorted(self._partial)
        elif self._measured:
            root = self._config.rootpath
            existing = {str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py")}
            file = root / "tests/durations.json"
            file.write_text(written(merge(read_table(file), self._measured, existing, self._partial)))


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin."""
    config.pluginmanager.register(Durations(config))
