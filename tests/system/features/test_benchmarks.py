"""What the benchmark counts, and the processes that it starts."""

from __future__ import annotations

from benchmarks import endurance
from benchmarks.contenders import ALL, kinds
from benchmarks.stage import stage


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
