"""The short form of `benchmarks/killed_scripts.py`: the process that runs a script is killed at each of its calls."""

from __future__ import annotations

import pytest

from benchmarks.killed_scripts import run, workers
from mulligan.devserver import DevServer
from tests.support.lab import Lab


@pytest.mark.parametrize(("mode", "seed"), [("unsupervised", 4), ("supervised", 1)])
async def test_no_effect_of_a_killed_script_is_there_twice_and_none_is_lost(
    lab: Lab, temporal: DevServer, mode: str, seed: int
) -> None:
    """A call without an effect was told to the script, and the script ends.

    Two calls, one after the other and side by side: a process dies in the middle of the first one, another after the second.
    """
    async with workers(mode, temporal) as queue:
        result = await run(lab.client, lab.model, queue, 0, seed)
    assert (result["status"], result["more"], result["wrong"]) == ("completed", 0, 0), result
    assert result["once"] + result["none_and_told"] == result["calls"]
    assert result["kills"] > 0
