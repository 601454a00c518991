"""The benchmark runs with its processes, the floors and Mulligan. The measured values are not checked."""

from __future__ import annotations

from pathlib import Path

from benchmarks import pace
from benchmarks.results import Job, Results


async def test_the_speed_job_measures_the_floors_and_mulligan(tmp_path: Path) -> None:
    results = Results(tmp_path)
    await pace.measure(Job("speed", "mulligan", 3, 1, ("floor", "floor-http")), results)
    [line] = Results(tmp_path).of("speed", "mulligan", 3)
    assert set(line["timed"]) == {"floor", "floor-http", "mulligan"}
    assert all(timed["seconds"] > 0 for timed in line["timed"].values())
