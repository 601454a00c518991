"""The short form of `benchmarks/killed_scripts.py`: the process that runs a script is killed at each of its calls."""

from __future__ import annotations

import pytest

from benchmarks.killed_scripts import run, workers
from mulligan.devserver import DevServer
from tests.live.conftest import Lab


@pytest.mark.parametrize("mode", ["unsupervised", "supervised"])
async def test_no_effect_of_a_killed_script_is_there_twice_and_none_is_lost(
    lab: Lab, temporal: DevServer, mode: str
) -> None:
    """A call without an effect was told to the script, and the script ends."""
    async with workers(mode, temporal) as queue:
        for number in range(2):
            result = await run(lab.client, lab.model, queue, number, seed=7)
            assert (result["status"], result["more"], result["wrong"]) == ("completed", 0, 0), result
            assert result["once"] + result["none_and_told"] == result["calls"]
            assert result["kills"] > 0
