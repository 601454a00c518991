"""The benchmark runs with its processes, the floors and Mulligan. The measured values are not checked."""

from __future__ import annotations

from pathlib import Path

from benchmarks import endurance, pace
from benchmarks.contenders import ALL, kinds
from benchmarks.results import Job, Results
from benchmarks.stage import stage


async def test_the_speed_job_measures_the_floors_and_mulligan(tmp_path: Path) -> None:
    results = Results(tmp_path)
    await pace.measure(Job("speed", "mulligan", 3, 1, ("floor", "floor-http")), results)
    [line] = Results(tmp_path).of("speed", "mulligan", 3)
    assert set(line["timed"]) == {"floor", "floor-http", "mulligan"}
    assert all(timed["seconds"] > 0 for timed in line["timed"].values())


async def test_a_run_asks_the_endpoint_as_often_as_it_has_steps() -> None:
    async with stage(["mulligan-local"]) as made:
        handle = await made.start("mulligan-local", 4)
        result = await handle.result()
        steps = (await made.endpoint_stats())["steps"][handle.id]
        told = await endurance.chain(made.client, handle)
    assert (result["status"], result["tool_calls"], steps) == ("completed", 4, 4)
    assert told["runs"] == 1
    assert told["bytes"] > 4 * 1024


def test_each_worker_is_one_process() -> None:
    assert [kind.name for kind in kinds(["floor", "floor-http", "mulligan", "mulligan-local"])] == ["floor", "mulligan"]
    assert ALL["strands"].worker.project is not None
