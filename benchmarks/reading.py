"""Statistics of the measurements: medians, spreads and ratios, for the page and the plots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Results

ENOUGH = 5
"""The required number of measurements for a spread; with fewer, the text states the number."""


@dataclass(frozen=True)
class Spread:
    """A median with the minimum and the maximum."""

    median: float
    least: float
    most: float
    count: int

    def text(self, digits: int = 2) -> str:
        """`1.23 (1.20–1.31)`; with too few measurements `1.23 (1.20–1.31, of 3)` or `1.23 (once)`."""
        middle = f"{self.median:,.{digits}f}"
        if self.count == 1:
            return f"{middle} (once)"
        few = f", of {self.count}" if self.count < ENOUGH else ""
        return f"{middle} ({self.least:,.{digits}f}–{self.most:,.{digits}f}{few})"


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of the values; None if there are none."""
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


class Reading:
    """Statistics of the results; None for what was not measured."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def sizes(self, figure: str) -> list[int]:
        """The sizes at which a figure was measured."""
        return sorted({line["size"] for line in self.results.lines if line["figure"] == figure})

    def history(self, name: str, steps: int) -> dict[str, Any] | None:
        """Runs, events, bytes and carried bytes of a chain."""
        return next(iter(self.results.of("history", name, steps)), None)

    def survival(self, name: str) -> dict[str, Any] | None:
        """Steps, outcome, runs, bytes."""
        return next(iter(self.results.of("survival", name)), None)

    def ms_a_step(self, name: str, steps: int) -> Spread | None:
        """Wall-clock time of a single run; that of a floor is from all sessions in which it was measured."""
        return self._each("speed", name, steps, lambda line, timed: timed["seconds"] * 1000 / line["steps"])

    def steps_a_second(self, name: str, runs: int) -> Spread | None:
        """Figures of that many concurrent runs."""
        return self._each("throughput", name, runs, lambda line, timed: line["steps"] * line["runs"] / timed["seconds"])

    def cpu_ms_a_step(self, name: str, steps: int, of: str) -> Spread | None:
        """CPU time of a process (`worker`, `server`, `endpoint`, `driver`) in a single run."""
        return self._each("speed", name, steps, lambda line, timed: timed["cpu"][of] * 1000 / line["steps"])

    def times(self, figure: str, name: str, base: str, size: int) -> Spread | None:
        """The ratio of its time to that of the base, for each pair. Below 1 it is faster."""
        lines = [line for line in self.results.of(figure, name, size) if base in line["timed"]]
        return spread([line["timed"][name]["seconds"] / line["timed"][base]["seconds"] for line in lines])

    def cpu_times(self, name: str, base: str, steps: int) -> Spread | None:
        """The ratio of its worker's CPU time to that of the base's, for each pair."""
        lines = [line["timed"] for line in self.results.of("speed", name, steps) if base in line["timed"]]
        return spread([timed[name]["cpu"]["worker"] / timed[base]["cpu"]["worker"] for timed in lines])

    def ms_a_step_beside(self, name: str, base: str, steps: int) -> Spread | None:
        """Wall-clock times of both sides of a pair: `base` was measured in the sessions of `name`."""
        lines = self.results.of("speed", name, steps)
        return spread([line["timed"][base]["seconds"] * 1000 / steps for line in lines if base in line["timed"]])

    def start(self, command: str) -> Spread | None:
        """The seconds of a command that starts and ends."""
        lines = self.results.of("start", "mulligan")
        return spread([line["seconds"][command] for line in lines if command in line["seconds"]])

    def memory(self, name: str, kind: str = "private") -> Spread | None:
        """The memory of an open run in a worker, in KiB."""
        lines = self.results.of("memory", name)
        return spread([(line["held"][kind] - line["idle"][kind]) / line["size"] / 1024 for line in lines])

    def idle(self, name: str) -> Spread | None:
        """The private memory of an idle worker, in MiB."""
        return spread([line["idle"]["private"] / 2**20 for line in self.results.of("memory", name)])

    def replay(self, name: str, steps: int) -> tuple[Spread, Spread, dict[str, Any]] | None:
        """Events a second of wall-clock and of CPU time, and the line with events and bytes."""
        lines = self.results.of("replay", name, steps)
        by = [spread([line["events"] / s for line in lines for s in line[of]]) for of in ("seconds", "cpu_seconds")]
        return (by[0], by[1], lines[0]) if by[0] and by[1] else None

    def loads(self) -> Spread | None:
        """The load average (1 minute) of the machine at the end of each measurement."""
        return spread([line["load"] for line in self.results.lines])

    def _each(self, figure: str, name: str, size: int, value: Any) -> Spread | None:
        own = self.results.of(figure, name, size)
        lines = own or [line for line in self.results.lines if (line["figure"], line["size"]) == (figure, size)]
        return spread([value(line, line["timed"][name]) for line in lines if name in line["timed"]])
