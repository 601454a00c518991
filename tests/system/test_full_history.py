"""Temporal's limit of a history's size: a run that cannot continue as new ends by itself below it."""

from __future__ import annotations

from mulligan.devserver import DevServer
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
from tests.system.features.test_long_conversations import serving

SERVERS_LIMIT = 50 * 1024 * 1024


async def test_a_run_with_a_full_history_ends_before_the_server_terminates_it(lab: Lab, temporal: DevServer) -> None:
    """Steps of 5.6 MB each that cannot be compressed; every text can still be read."""
    size = 1_390_000
    steps = [
        Turn(calls=[("give_noise", f'{{"size": {size}, "seed": {step * 4 + n}}}') for n in range(4)])
        for step in range(12)
    ]
    async with serving(lab, temporal) as at:
        handle = await at.start([*steps, DONE], agent="large", max_steps=100)
        result = await handle.result()
        last = await handle.query("messages", args=[4 * result["steps"], 1000])
        history = (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
    assert (result["status"], result["tool_calls"]) == ("max_history", 4 * result["steps"])
    assert 40_000_000 < history < SERVERS_LIMIT
    assert last["total"] == 1 + 5 * result["steps"]
    assert len(last["messages"][0]["text"]) == size
